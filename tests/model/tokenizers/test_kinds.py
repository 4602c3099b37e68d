"""Every kind of tokenizer against the library that defines it: ids of any text, text of any ids."""

import re
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.tokenizers.base import Tokenizer
from model.tokenizers.load import load_tokenizer
from service.generation.text import TextStream
from tests.model.tokenizers.kinds import KINDS, PIPELINES, Library
from tests.model.tokenizers.runs import runs


@dataclass(frozen=True)
class Case:
    """A tokenizer, the library that defines it, and the tokens of single bytes."""

    tokenizer: Tokenizer
    library: Library
    single: dict[bytes, int]


WORDS = [
    "a",
    " Word",
    "  ",
    "\n",
    "\r\n",
    "12",
    "日本語",
    "🦙",
    "é",
    "e\u0301",
    "▁",
    " ▁",
    "</s>",
    "[INST]",
    "ﬁ",
    "\u200d",
]
texts = st.lists(st.sampled_from(WORDS) | st.text(st.characters(exclude_categories=["Cs"]), max_size=6), max_size=12)
seeds = st.lists(st.integers(0, 2**20), max_size=24)


@pytest.fixture(scope="module", params=PIPELINES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    kind = KINDS[request.param]
    directory = kind.write(tmp_path_factory.mktemp("tokenizer"))
    tokenizer = load_tokenizer(directory)
    pieces = {tokenizer.piece(token): token for token in range(tokenizer.vocab_size)}
    single = {piece: token for piece, token in pieces.items() if len(piece) == 1}
    return Case(tokenizer, kind.library(directory), single)


@settings(deadline=None, max_examples=50)
@given(texts.map("".join).filter(bool))
def test_texts_have_the_ids_of_the_library(case: Case, text: str) -> None:
    tokenizer, library = case.tokenizer, case.library
    ids = tokenizer.encode(text, add_bos=False, parse_control=False)
    if not any(name in text for name in tokenizer.control):  # the `tokenizers` library would find it
        assert ids == library.encode(text)
    assert tokenizer.decode(ids) == library.decode(ids)


def test_runs_have_the_ids_of_the_library(case: Case) -> None:
    for text in runs():
        expected = case.library.encode(text)
        assert case.tokenizer.encode(text, add_bos=False, parse_control=False) == expected, (text[:3], len(text))


def test_the_begin_token_comes_first_where_the_model_has_one(case: Case) -> None:
    tokenizer = case.tokenizer
    ids = tokenizer.encode(" a ", add_bos=False, parse_control=False)
    assert tokenizer.encode(" a ", add_bos=True, parse_control=False) == case.library.begin + ids
    assert tokenizer.encode(" a ", add_bos=True, parse_control=True) == case.library.begin + ids


@settings(deadline=None, max_examples=60)
@given(seeds, st.booleans())
def test_a_stream_of_any_ids_is_what_the_library_decodes(case: Case, seeds: list[int], with_bytes: bool) -> None:
    """Random ids: half of the time mostly of single bytes, which are rarely whole characters.

    The token of the byte 0x20 is not among them: at the beginning of a text only sentencepiece tells it from a space.
    """
    tokenizer, library = case.tokenizer, case.library
    control = set(tokenizer.control.values())
    single = list(case.single.values()) if with_bytes else []
    ids = [single[seed % len(single)] if single and seed % 4 else seed % tokenizer.vocab_size for seed in seeds]
    ids = [token for token in ids if tokenizer.piece(token) != b" " or token == case.single[b" "]]
    expected = library.decode([token for token in ids if token not in control])
    assert _runs(tokenizer.decode(ids)) == _runs(expected)
    stream = TextStream(tokenizer, strip_leading_space=tokenizer.strips_leading_space)
    text = ""
    for token in ids:
        stream.push(token)
        text += stream.take().text
        assert _runs(tokenizer.decode(ids)).startswith(_runs(text))
    text += stream.take(final=True).text
    data = b"".join(map(tokenizer.piece, ids))
    broken = _runs(data.decode(errors="replace")).endswith("\ufffd") and not data.endswith("\ufffd".encode())
    assert _runs(text).removesuffix("\ufffd" * broken) == _runs(expected).removesuffix("\ufffd" * broken)


def _runs(text: str) -> str:
    """The text with one replacement character for each run: libraries differ in how many a broken sequence has."""
    return re.sub("\ufffd+", "\ufffd", text)


def test_a_character_is_withheld_until_its_last_byte(case: Case) -> None:
    tokenizer = case.tokenizer
    for char in "é日🦙":
        stream = TextStream(tokenizer)
        taken = []
        for byte in char.encode():
            stream.push(case.single[bytes([byte])])
            taken.append(stream.take().text)
        assert taken == [""] * (len(taken) - 1) + [char]


def test_control_tokens_in_a_stream_have_no_text(case: Case) -> None:
    tokenizer = case.tokenizer
    word = tokenizer.encode("word", add_bos=False, parse_control=False)
    for token in tokenizer.control.values():
        assert tokenizer.piece(token) == b""
    ids = [*tokenizer.control.values(), *word, *tokenizer.control.values()]
    assert tokenizer.decode(ids) == "word"


def test_ids_outside_the_vocabulary_have_no_text_and_no_name(case: Case) -> None:
    tokenizer = case.tokenizer
    for token in (-1, -tokenizer.vocab_size, tokenizer.vocab_size, 10**6):
        assert (tokenizer.piece(token), tokenizer.name(token)) == (b"", "")
    assert tokenizer.decode([-1, tokenizer.vocab_size]) == ""


def test_names_are_text_or_bytes(case: Case) -> None:
    """As OpenAI writes the tokens of log probabilities."""
    tokenizer = case.tokenizer
    assert tokenizer.name(case.single[b"\xf0"]) == "bytes:\\xf0"
    assert tokenizer.name(case.single[b"a"]) == "a"
    assert {name: tokenizer.name(token) for name, token in tokenizer.control.items()} == {
        name: name for name in tokenizer.control
    }
