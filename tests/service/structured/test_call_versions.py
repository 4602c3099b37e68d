"""Calls in the style of each Mistral version, against mistral-common, and calls explained to other models."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from tokenizers import AddedToken

from model.chat.formats import load_chat
from model.chat.mistral import CALL_STYLES, MistralChat
from model.checkpoint.generation_config import GenerationDefaults
from model.grammar.compiler import Compiler
from model.tokenizers.base import Tokenizer
from model.tokenizers.load import load_tokenizer
from service.api.openai.chat import ChatBody, ToolsBody
from service.api.prompt import chat_request
from service.generation.served import ServedModel
from service.schema.tools import Function
from service.structured.call_reader import CallReader
from service.structured.call_style import STYLES, Style, call_constraint, explained
from tests.fakes import IntegerTokenizer, make_info
from tests.model.chat.published import ANSWER, CALLED, FORMATS, SYSTEM, TOOL, USER, source
from tests.model.chat.versions import write_directory
from tests.model.tokenizers.role_files import CLOSE, END, pipeline, write
from tests.service.live import FakeChat, running
from tests.service.structured.call_texts import gathered

Json = dict[str, Any]
FILES = ("spm-v3", "spm-v7", "tekken-v3", "tekken-v7", "tekken-v11", "tekken-v13", "tekken-v15")
"""Each style, with each kind of tokenizer that has it and reads it in its own way."""
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}},
    {"type": "function", "function": {"name": "time_now"}},
]


class Version(NamedTuple):
    style: Style
    tokenizer: Tokenizer
    compiler: Compiler
    oracle: MistralTokenizer
    chat: MistralChat


@pytest.fixture(scope="module", params=FILES)
def version(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Version:
    directory: Path = tmp_path_factory.mktemp(request.param)
    file = write_directory(directory, request.param)
    tokenizer = load_tokenizer(directory)
    chat = MistralChat(file, tokenizer)
    assert chat.call_style is not None
    end = tokenizer.eos_id
    assert end is not None
    compiler = Compiler.of(tokenizer, [end], tokenizer.vocab_size)
    return Version(STYLES[chat.call_style], tokenizer, compiler, MistralTokenizer.from_file(file), chat)


def written(version: Version, calls: Sequence[tuple[str, Json]]) -> list[int]:
    """The tokens of an answer with these calls, without its end token, as mistral-common writes them."""
    ids = ["abcdefgh1", "ABCDEFGH2"][: len(calls)]
    called = [
        {"id": name, "type": "function", "function": {"name": function, "arguments": json.dumps(arguments)}}
        for name, (function, arguments) in zip(ids, calls, strict=True)
    ]
    messages: list[Any] = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": called}]
    messages += [{"role": "tool", "content": "1", "tool_call_id": name} for name in ids]
    tokens: list[int] = version.oracle.encode_chat_completion(ChatCompletionRequest.from_openai(messages)).tokens
    begin, end = version.tokenizer.control["[/INST]"], version.tokenizer.eos_id
    answer = tokens[tokens.index(begin) + 1 :]
    return answer[: answer.index(end)]


def consumed(version: Version, tokens: Sequence[int], **fields: Any) -> bool:
    """Whether the grammar of a request with these fields lets a model write all the tokens."""
    body = ToolsBody.model_validate({"tools": TOOLS, **fields})
    constraint = call_constraint(body.calls, version.style, version.tokenizer)
    matcher = version.compiler.compile(constraint.serialized())
    return matcher.try_consume_tokens([*tokens]) == len(tokens) and matcher.is_accepting()


def text_of(version: Version, tokens: Sequence[int]) -> str:
    """The text as the service reads it: with the control tokens that the style needs."""
    visible = version.tokenizer.bytes_of(keep_control=version.style.control(version.tokenizer))
    return b"".join(map(visible, tokens)).decode()


ONE = [("weather", {"city": 'Zürich "}{"', "days": 3})]
TWO = [*ONE, ("time_now", {})]


@pytest.mark.parametrize("calls", [ONE, TWO, TWO[1:]], ids=["one", "two", "without arguments"])
def test_grammars_accept_what_mistral_common_writes(calls: list[tuple[str, Json]], version: Version) -> None:
    tokens = written(version, calls)
    one = {"type": "function", "function": {"name": calls[0][0]}}
    for choice in ("auto", "required", one):
        assert consumed(version, tokens, tool_choice=choice) == (choice != one or len(calls) == 1), choice
    assert consumed(version, tokens, parallel_tool_calls=False) == (len(calls) == 1)
    other = {"type": "function", "function": {"name": TOOLS[calls[0][0] == "weather"]["function"]["name"]}}  # type: ignore[index]
    assert not consumed(version, tokens, tool_choice=other)
    text = version.tokenizer.encode("It is sunny", add_bos=False, parse_control=False)
    assert consumed(version, text)
    assert not consumed(version, text, tool_choice="required")


def test_arguments_outside_the_schema_are_not_written(version: Version) -> None:
    for wrong in ({"days": 3}, {"city": 3}):
        assert not consumed(version, written(version, [("weather", wrong)]), tool_choice="required")


def test_what_mistral_common_writes_is_read_with_its_ids(version: Version) -> None:
    text = text_of(version, written(version, TWO))
    content, calls = gathered(CallReader(version.style), text)
    functions = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
    assert (content, functions) == ("", TWO)
    ids = [call["id"] for call in calls]
    if version.style is STYLES["mistral-args"]:  # no ids from v13 on
        assert all(re.fullmatch("[a-zA-Z0-9]{9}", name) for name in ids)
        assert len({*ids}) == 2
    else:
        assert ids == ["abcdefgh1", "ABCDEFGH2"]


def test_a_request_from_another_server_is_ordered(version: Version) -> None:
    """Its ids become ids that the format takes; the reader gets the control tokens of the style."""
    called = {"id": "call_0123456789", "function": {"name": "weather", "arguments": '{"city": "Bern"}'}}
    messages: list[Json] = [
        {"role": "user", "content": "How is it?"},
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "content": "sunny", "tool_call_id": "call_0123456789"},
    ]
    body = ChatBody.model_validate({"messages": messages, "tools": TOOLS, "tool_choice": "required", "max_tokens": 9})
    end, info = version.tokenizer.eos_id or 0, replace(make_info(max_model_len=4096), vocab_size=40_000)
    served = ServedModel(("m",), version.tokenizer, version.chat, GenerationDefaults((end,), {}), 50, info)
    order = chat_request(body.chat(), served)
    short = re.findall("[a-zA-Z0-9]{9}", STYLES["mistral"].with_ids(messages)[2]["tool_call_id"])
    called["id"] = messages[2]["tool_call_id"] = short[0]
    messages[1]["content"] = ""
    expected = ChatCompletionRequest.from_openai(messages, tools=TOOLS)
    assert order.submits[0].prompt == version.oracle.encode_chat_completion(expected).tokens
    assert "[TOOL_CALLS]" in order.visible_control
    grammar = order.params.grammar
    assert grammar is not None
    tokens = written(version, ONE)
    assert version.compiler.compile(grammar).try_consume_tokens(tokens) == len(tokens)


def test_an_id_that_is_none_or_not_new_is_replaced() -> None:
    for wrong in ("short", "abcdefgh1", "abcdefgh12"):
        text = f"[TOOL_CALLS]f[CALL_ID]abcdefgh1[ARGS]{{}}[TOOL_CALLS]f[CALL_ID]{wrong}[ARGS]{{}}"
        _, calls = gathered(CallReader(STYLES["mistral-v11"]), text)
        first, second = (call["id"] for call in calls)
        assert first == "abcdefgh1"
        assert second != wrong
        assert re.fullmatch("[a-zA-Z0-9]{9}", second)


def test_every_style_of_a_version_or_a_template_is_declared() -> None:
    styles = {*CALL_STYLES.values(), *(known.style for known in FORMATS.values())}
    assert {style for style in styles if style} <= STYLES.keys()


# Over HTTP, with a model that repeats its prompt


class Bytes(IntegerTokenizer):
    """A tokenizer of bytes, of which three are control tokens."""

    control: Mapping[str, int] = MappingProxyType({"<end>": 0, "[TOOL_CALLS]": 1, "[ARGS]": 2, "[CALL_ID]": 3})  # type: ignore[assignment]

    def piece(self, token: int) -> bytes:
        return b"" if token <= 3 else super().piece(token)

    def name(self, token: int) -> str:
        return {number: name for name, number in self.control.items()}.get(token) or super().name(token)


class Reciting(FakeChat):
    """FakeChat, where names of control tokens become those tokens: the model writes them."""

    call_style = "mistral-v11"

    def encode(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        text = self.render(messages, **options)
        for name, token in Bytes.control.items():
            text = text.replace(name, chr(token))
        return [*text.encode()]


SPOKEN = 'Well.[TOOL_CALLS]weather[CALL_ID]abcdefgh1[ARGS]{"city": "é"}[TOOL_CALLS]time_now[CALL_ID]abcdefgh2[ARGS]{}'


def test_a_whole_answer_has_the_calls_of_the_model() -> None:
    with running(model="recite", tokenizer=Bytes(), chat=Reciting(), max_model_len=1024) as live:
        choice = live.chat(SPOKEN, tools=TOOLS)["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "Well.")
    calls = [(call["id"], call["function"]) for call in choice["message"]["tool_calls"]]
    weather, time_now = {"name": "weather", "arguments": '{"city": "é"}'}, {"name": "time_now", "arguments": "{}"}
    assert calls == [("abcdefgh1", weather), ("abcdefgh2", time_now)]


@pytest.mark.parametrize("special", [True, False])
def test_marks_of_calls_that_are_tokens_are_written_and_read(special: bool, tmp_path: Path) -> None:
    """Whether the tokenizer's file calls them special or not: the template writes them, so no text becomes them."""
    inner = pipeline()
    marks = ("<tool_call>", "</tool_call>")
    inner.add_tokens([AddedToken(mark, special=special, normalized=False) for mark in marks])
    tokenizer = load_tokenizer(write(tmp_path, inner, {"chat_template.jinja": source("hermes-2-pro.tool_use")}))
    style, compiler = STYLES["hermes"], Compiler.of(tokenizer, [END], tokenizer.vocab_size)
    text = '<tool_call>\n{"name": "time_now", "arguments": {}}\n</tool_call>'
    tokens = tokenizer.encode(text, add_bos=False, parse_control=True)
    assert [token for token in tokens if token > CLOSE] == [tokenizer.control[mark] for mark in marks]
    for choice in ("auto", "required"):
        body = ToolsBody.model_validate({"tools": TOOLS, "tool_choice": choice})
        matcher = compiler.compile(call_constraint(body.calls, style, tokenizer).serialized())
        assert matcher.try_consume_tokens([*tokens, END]) == len(tokens) + 1
    visible = tokenizer.bytes_of(keep_control=style.control(tokenizer))
    _, (call,) = gathered(CallReader(style), b"".join(map(visible, tokens)).decode())
    assert call["function"]["name"] == "time_now"


@pytest.fixture(scope="module")
def tokenizer(embedded_files: Path) -> Tokenizer:
    return load_tokenizer(embedded_files)


@pytest.mark.parametrize("name", [name for name, known in FORMATS.items() if known.style is None])
def test_tools_calls_and_results_reach_the_model(name: str, embedded_files: Path, tokenizer: Tokenizer) -> None:
    """Also where the template refuses system messages, or wants users and assistants to take turns."""
    chat = load_chat(embedded_files, tokenizer, source(name))
    assert chat is not None
    function = Function.model_validate(TOOL["function"])
    for messages in (CALLED, [SYSTEM, *CALLED, ANSWER, USER]):
        text = chat.render(explained(messages, [function]))
        assert '"name": "weather", "description": "Tells the weather"' in text
        assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>' in text
        assert "<tool_response>\nsunny\n</tool_response>" in text
        assert text.count("Be brief.") == messages.count(SYSTEM)
