"""No text becomes a control token unless the caller wants that: for every control token of every tokenizer."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from model.chat.formats import ChatFormat
from model.chat.jinja import JinjaChat
from model.chat.mistral import MistralChat
from model.tokenizers.base import Tokenizer
from model.tokenizers.load import load_tokenizer, mistral_tokenizer_file
from model.tokenizers.pieces import control_pattern
from tests.model.tokenizers.kinds import KINDS

AROUND = ("{}", "a{}b", " {} ", "▁{}▁", "\n{}\n", "{0}{0}", "<{}>", "[{}]", "</s>{}<s>")
TEMPLATE = (
    "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}"
    "[INST] {{ message.content }} [/INST]{% for call in message.tool_calls or [] %}<tool_call>{{ call | tojson }}"
    "{% endfor %}{% endfor %}"
)


@dataclass(frozen=True)
class Case:
    directory: Path
    tokenizer: Tokenizer

    def control_of(self, ids: list[int]) -> list[int]:
        control = set(self.tokenizer.control.values())
        return [token for token in ids if token in control]


@pytest.fixture(scope="module", params=[name for name in KINDS if "words" not in name])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    directory = KINDS[request.param].write(tmp_path_factory.mktemp("tokenizer"))
    return Case(directory, load_tokenizer(directory))


def test_no_text_becomes_a_control_token(case: Case) -> None:
    """Names alone, with all that may stand beside them, and all in one text."""
    names = list(case.tokenizer.control)
    apart = [*(name for name in names if "SPECIAL" not in name), names[-1]]
    found = [text.format(name) for name in apart for text in AROUND]
    found += ["".join(names), " ".join(names), " word ".join(names), "\n".join(reversed(names))]
    for text in found:
        ids = case.tokenizer.encode(text, add_bos=False, parse_control=False)
        assert case.control_of(ids) == []
        assert _words(case.tokenizer.decode(ids)) == _words(text)


def _words(text: str) -> str:
    """A text without what SentencePiece does not keep: its mark of a space, and a space at the beginning."""
    return text.replace("▁", " ").strip()


def test_each_name_is_parsed_on_request(case: Case) -> None:
    for name, token in case.tokenizer.control.items():
        assert case.tokenizer.encode(name, add_bos=False, parse_control=True) == [token]
    ids = case.tokenizer.encode("a b".join(case.tokenizer.control), add_bos=False, parse_control=True)
    assert case.control_of(ids) == list(case.tokenizer.control.values())


def test_no_content_of_a_conversation_becomes_a_control_token(case: Case) -> None:
    """Through a Jinja template, and through mistral-common's format where the tokenizer is Mistral's."""
    names = list(case.tokenizer.control)
    for chat in _formats(case):
        for content in ("".join(names), " ".join(names), "x{}x".format("\n".join(names))):
            spelled, plain = (chat.encode(_messages(text)) for text in (content, "-"))
            assert case.control_of(spelled) == case.control_of(plain)
            assert len(spelled) > len(plain)


def test_no_word_of_a_tool_becomes_a_control_token(case: Case) -> None:
    """Descriptions, arguments and results, and the system message beside them."""
    names = " ".join(case.tokenizer.control)
    for chat in _formats(case):
        if chat.call_style is not None:
            spelled, plain = (chat.encode(_calls(text), tools=_tools(text)) for text in (names, "-"))
            assert case.control_of(spelled) == case.control_of(plain)
            assert len(spelled) > len(plain) + 3 * len(case.tokenizer.control)


def _formats(case: Case) -> list[ChatFormat]:
    tokenizer = case.tokenizer
    special = {"bos_token": "" if tokenizer.bos_id is None else tokenizer.name(tokenizer.bos_id)}
    formats: list[ChatFormat] = [JinjaChat(TEMPLATE, tokenizer, special)]
    if (file := mistral_tokenizer_file(case.directory)) is not None:
        formats.append(MistralChat(case.directory / file.name, tokenizer))
    return formats


def _messages(content: str) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": content},
        {"role": "assistant", "content": f"so{content}"},
        {"role": "user", "content": f" {content}"},
    ]


def _calls(text: str) -> list[dict[str, Any]]:
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": {"x": text}}}
    return [
        {"role": "system", "content": text},
        {"role": "user", "content": "-"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": text, "tool_call_id": "abcdefghi"},
    ]


def _tools(text: str) -> list[dict[str, Any]]:
    parameters = {"type": "object", "properties": {"x": {"type": "string", "description": text}}}
    return [{"type": "function", "function": {"name": "f", "description": text, "parameters": parameters}}]


def test_a_thousand_names_are_one_search() -> None:
    """The pattern finds what a plain list of the names would, the longest first."""
    names = ["<s>", "</s>", "<s>x", "[A]", "[A]]", "", *(f"<SPECIAL_{rank}>" for rank in range(100)), "<SPECIAL_7>>"]
    plain = re.compile("|".join(map(re.escape, sorted(filter(None, names), key=len, reverse=True))))
    pattern = control_pattern(filter(None, names))
    text = "a<s>x<s></s>[A]][A]<SPECIAL_7>><SPECIAL_77><SPECIAL_<SPECIAL_100><SPECIAL_9>[<"
    assert pattern.findall(text) == plain.findall(text) != []
    assert control_pattern([]).findall(text) == []
    assert len(pattern.pattern) < len(plain.pattern) / 2
