"""The text of an answer and its thought, for every division into tokens, against decoding and searching the whole."""

import itertools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.chat.reasoning import STYLES
from service.generation.text import TextStream
from service.generation.thinking import Reasoning
from tests.fakes import IntegerTokenizer


class PieceTokenizer(IntegerTokenizer):
    """A tokenizer whose token n is `pieces[n]`; 1,000 and 1,001 are Mistral's marks."""

    control: Mapping[str, int] = MappingProxyType({"[THINK]": 1000, "[/THINK]": 1001})

    def __init__(self, pieces: list[bytes]) -> None:
        self.pieces = pieces

    def piece(self, token: int) -> bytes:
        return self.pieces[token] if token < 1000 else b""


def cut(text: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:stop] for start, stop in itertools.pairwise(edges)]


def run(pieces: list[bytes], stops: list[str] = (), **options: int | bool) -> tuple[list[str], list[int], bool]:  # type: ignore[assignment]
    """The returned texts, the starts of their tokens, and whether a stop string was found."""
    stream = TextStream(PieceTokenizer(pieces), stops, **options)  # type: ignore[arg-type]
    returned: list[str] = []
    starts: list[int] = []
    stopped = False
    for token in range(len(pieces)):
        stopped = stream.push(token)
        released = stream.take(final=stopped or token == len(pieces) - 1)
        returned.append(released.text)
        starts += released.starts
        if stopped:
            break
    return returned, starts, stopped


def expected(text: str, stops: list[str]) -> str:
    """The text before the stop string that is complete first (the longest of those that end together)."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if text[:end].endswith(stop)]
        if found:
            return text[: end - max(map(len, found))]
    return text


LETTERS = st.text(alphabet="abé🙂", max_size=30)
STOPS = st.lists(st.text(alphabet="abé🙂", min_size=1, max_size=5), max_size=3)


@given(LETTERS, STOPS, st.lists(st.integers(min_value=0), max_size=40))
def test_any_cut_into_tokens_gives_the_same_text(text: str, stops: list[str], places: list[int]) -> None:
    returned, starts, stopped = run(cut(text.encode(), places), stops)
    whole = expected(text, stops)
    assert "".join(returned) == whole
    assert stopped == any(stop in text for stop in stops)
    assert all(start <= len(whole) for start in starts)
    assert starts == sorted(starts)


@given(LETTERS, STOPS, st.lists(st.integers(min_value=0), max_size=40))
def test_nothing_is_held_back_without_need(text: str, stops: list[str], places: list[int]) -> None:
    pieces = cut(text.encode(), places)
    stream = TextStream(PieceTokenizer(pieces), stops)
    returned, data = "", b""
    for token, piece in enumerate(pieces):
        if stream.push(token):
            return
        data += piece
        so_far = data.decode(errors="ignore")
        returned += stream.take().text
        lengths = [n for stop in stops for n in range(1, len(stop)) if so_far.endswith(stop[:n])]
        assert returned == so_far[: len(so_far) - max(lengths, default=0)]


@given(LETTERS, STOPS, st.lists(st.integers(min_value=0), max_size=40))
def test_with_its_stop_string_the_text_is_returned_as_it_comes(text: str, stops: list[str], places: list[int]) -> None:
    pieces = cut(text.encode(), places)
    returned, starts, _ = run(pieces, stops, include_stop=True)
    end = next((end for end in range(len(text) + 1) if text[:end].endswith(tuple(stops))), len(text))
    assert "".join(returned) == text[:end]
    for n_tokens in range(1, len(returned)):
        assert "".join(returned[:n_tokens]) == b"".join(pieces[:n_tokens]).decode(errors="ignore")
    assert all(start <= end for start in starts)


@given(st.binary(max_size=30), st.lists(st.integers(min_value=0), max_size=30))
def test_arbitrary_bytes_never_break(data: bytes, places: list[int]) -> None:
    whole = "".join(run([data])[0])
    returned = run(cut(data, places))[0]
    assert "".join(returned) == whole
    "".join(returned).encode()


def test_a_character_appears_when_it_is_whole() -> None:
    smile = "🙂".encode()
    returned, starts, _ = run([b"a", smile[:1], smile[1:3], smile[3:], b"b"])
    assert returned == ["a", "", "", "🙂", "b"]
    assert starts == [0, 1, 1, 1, 2]


def test_an_incomplete_character_at_the_end_is_dropped() -> None:
    returned, starts, _ = run([b"a", "🙂".encode()[:2]])
    assert "".join(returned) == "a"
    assert starts == [0, 1]


def test_tokens_cut_off_by_a_stop_string_are_not_returned() -> None:
    returned, starts, stopped = run([b"one", b" tw", b"o E", b"N", b"D now"], ["END"])
    assert stopped
    assert "".join(returned) == "one two "
    assert starts == [0, 3, 6]  # "o E" keeps "o "; "N" and "D now" keep nothing


def test_a_stop_string_across_three_tokens_is_never_returned() -> None:
    assert run([b"a<", b"|", b"x", b"<|", b"end|>b"], ["<|end|>"])[0] == ["a", "", "<|x", "", ""]


@pytest.mark.parametrize(("min_tokens", "text"), [(0, "a"), (1, "a"), (2, "ab-a"), (4, "ab-ab-")])
def test_the_text_of_the_first_tokens_is_not_searched(min_tokens: int, text: str) -> None:
    assert "".join(run([b"a", b"b", b"-", b"ab", b"-"], ["b"], min_tokens=min_tokens)[0]) == text


def test_one_leading_space_is_stripped_and_only_the_first() -> None:
    assert run([b"", b" ", b" a"], strip_leading_space=True)[0] == ["", "", " a"]
    assert run([b" a"])[0] == [" a"]


TAGS, TOKENS = STYLES["tags"], STYLES["tokens"]


def read(
    tokenizer: PieceTokenizer, tokens: list[int], reasoning: Reasoning, every: int = 1, stops: tuple[str, ...] = ()
) -> tuple[str, str, TextStream]:
    """The thought and the text, taken after every few tokens."""
    stream, thoughts, answers, starts = TextStream(tokenizer, stops, reasoning=reasoning), "", "", 0
    for number, token in enumerate(tokens, 1):
        ended = stream.push(token)
        if ended or number % every == 0:
            released = stream.take(final=ended)
            answers, starts = answers + released.text, starts + len(released.starts)
            thoughts += released.thought
        if ended:
            return thoughts, answers, stream
    released = stream.take(final=True)
    assert starts + len(released.starts) == len(tokens), "every token has its place in the text"
    return thoughts + released.thought, answers + released.text, stream


WORDS = st.text(alphabet="a é🙂<>/think\n.", max_size=12)


@given(thought=WORDS, answer=WORDS, places=st.lists(st.integers(0, 200), max_size=12), every=st.integers(1, 4))
@settings(max_examples=150, deadline=None)
@pytest.mark.parametrize("phase", ["before", "inside"])
def test_tags_in_any_division(phase: str, thought: str, answer: str, places: list[int], every: int) -> None:
    thought = thought.replace("</think>", "")
    opening = "\n<think>" if phase == "before" else ""
    pieces = cut(f"{opening}\n{thought}\n</think>\n\n{answer}".encode(), places)
    tokenizer = PieceTokenizer(pieces)
    found = read(tokenizer, [*range(len(pieces))], Reasoning.of(TAGS, phase, tokenizer), every)  # type: ignore[arg-type]
    assert found[:2] == (thought.strip(), answer.lstrip())


@given(answer=WORDS, places=st.lists(st.integers(0, 60), max_size=8), every=st.integers(1, 3))
@settings(max_examples=150, deadline=None)
def test_an_answer_without_a_thought_is_whole(answer: str, places: list[int], every: int) -> None:
    if answer.lstrip().startswith("<think>"):
        return
    pieces = cut(answer.encode(), places)
    tokenizer = PieceTokenizer(pieces)
    tokens = [*range(len(pieces))]
    assert read(tokenizer, tokens, Reasoning.of(TAGS, "before", tokenizer), every)[:2] == ("", answer)
    continued = Reasoning.of(TAGS, "after", tokenizer, continues=True)
    assert read(tokenizer, tokens, continued, every)[:2] == ("", answer)
    closed = Reasoning.of(TAGS, "after", tokenizer)
    assert read(tokenizer, tokens, closed, every)[:2] == ("", answer.lstrip()), "white space belongs to the mark"


@given(thought=WORDS, answer=WORDS, places=st.lists(st.integers(0, 60), max_size=8), every=st.integers(1, 3))
@settings(max_examples=100, deadline=None)
def test_control_tokens_keep_every_character(thought: str, answer: str, places: list[int], every: int) -> None:
    """White space stays, and marks in plain letters are text."""
    first, second = cut(f"{thought}[/THINK]".encode(), places), cut(f"[THINK]{answer}".encode(), places)
    tokenizer = PieceTokenizer([*first, *second])
    tokens = [1000, *range(len(first)), 1001, *range(len(first), len(first) + len(second))]
    thoughts, answers, stream = read(tokenizer, tokens, Reasoning.of(TOKENS, "before", tokenizer), every)
    assert (thoughts, answers) == (f"{thought}[/THINK]", f"[THINK]{answer}")
    assert stream.n_thought == 2 + len(first)


@pytest.mark.parametrize("every", [1, 2, 8])
def test_an_answer_has_one_thought_and_it_comes_first(every: int) -> None:
    """As whole answers of every dialect have it. What follows a later mark is text."""
    tokenizer = PieceTokenizer([b"a", b"b", b"c", b"d", b" \n"])

    def found(tokens: list[int], phase: Any = "before") -> tuple[str, str, int]:
        thought, text, stream = read(tokenizer, tokens, Reasoning.of(TOKENS, phase, tokenizer), every)
        return thought, text, stream.n_thought

    assert found([1000, 0, 1001, 1, 1000, 2, 1001, 3]) == ("a", "bcd", 3)
    assert found([0, 1000, 1, 1001, 2]) == ("", "abc", 0)
    assert found([1000, 1], "after") == ("", "b", 0)
    assert found([0, 1001, 1000, 1], "inside") == ("a", "b", 2)
    assert found([4, 1000, 0, 1001, 1]) == ("a", "b", 4), "white space before a thought is no answer"
    assert found([4, 0]) == ("", " \na", 0)


def test_a_thought_in_the_text_is_counted() -> None:
    tokenizer = PieceTokenizer([b"<think>", b"one", b"</think>", b"two"])
    reasoning = Reasoning.of(TAGS, "before", tokenizer, apart=False)
    stream = TextStream(tokenizer, reasoning=reasoning)
    assert not any(stream.push(token) for token in range(4))
    released = stream.take(final=True)
    assert (released.text, released.thought) == ("<think>one</think>two", "")
    assert stream.n_thought == 3


def test_text_that_a_stop_string_ends_has_nothing_after_it() -> None:
    tokenizer = PieceTokenizer([b"\n", b" <th", b"x"])
    reasoning = Reasoning.of(TAGS, "before", tokenizer)
    assert read(tokenizer, [0, 1, 2], reasoning, stops=("\n",))[1] == ""


def test_a_thought_that_is_continued_keeps_its_space() -> None:
    tokenizer = PieceTokenizer([b" well", b"</think>", b"\n", b"Yes"])
    reasoning = Reasoning.of(TAGS, "inside", tokenizer, continues=True)
    assert read(tokenizer, [0, 1, 2, 3], reasoning)[:2] == (" well", "Yes")


def test_stop_strings_end_answers_only() -> None:
    tokenizer = PieceTokenizer([b"<think>", b"one stop", b"</think>", b"two st", b"op three"])
    found = read(tokenizer, [0, 1, 2, 3, 4], Reasoning.of(TAGS, "before", tokenizer), stops=("stop",))
    assert found[:2] == ("one stop", "two ")
    assert found[2].stopped_by == "stop"
    assert found[2].n_thought == 3


def test_a_thought_that_is_cut_has_no_answer() -> None:
    tokenizer = PieceTokenizer([b"<think>", b"Hm", b" so </th", b"\xf0\x9f"])
    reasoning = Reasoning.of(TAGS, "before", tokenizer)
    assert read(tokenizer, [0, 1, 2], reasoning)[:2] == ("Hm so </th", "")
    assert read(tokenizer, [0, 1, 3], reasoning)[:2] == ("Hm", "")
    assert read(tokenizer, [0], reasoning)[:2] == ("", "")
