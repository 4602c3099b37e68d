"""Incremental text: against decoding and searching the whole at once."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.generation.text import StopString, TextStream


class Pieces:
    """A tokenizer whose token i is the i-th piece."""

    bos_id = eos_id = None
    strips_leading_space = False

    def __init__(self, pieces: list[bytes]) -> None:
        self.vocab_size = len(pieces)
        self._pieces = pieces

    def piece(self, token: int) -> bytes:
        return self._pieces[token]

    def name(self, token: int) -> str:
        raise NotImplementedError

    def encode(self, text: str, *, add_bos: bool, parse_control: bool) -> list[int]:
        raise NotImplementedError

    def decode(self, tokens: list[int]) -> str:
        raise NotImplementedError


def run(pieces: list[bytes], stops: list[str] = (), **options: int | bool) -> tuple[list[str], list[int], bool]:  # type: ignore[assignment]
    """The returned texts, the starts of their tokens, and whether a stop string was found."""
    stream = TextStream(Pieces(pieces), [StopString.compile(stop) for stop in stops], **options)  # type: ignore[arg-type]
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


def cut_up(data: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(edges)] or [b""]


LETTERS = st.text(alphabet="abé🙂", max_size=30)
STOPS = st.lists(st.text(alphabet="abé🙂", min_size=1, max_size=5), max_size=3)


@given(LETTERS, STOPS, st.lists(st.integers(min_value=0), max_size=40))
def test_any_cut_into_tokens_gives_the_same_text(text: str, stops: list[str], places: list[int]) -> None:
    returned, starts, stopped = run(cut_up(text.encode(), places), stops)
    whole = expected(text, stops)
    assert "".join(returned) == whole
    assert stopped == any(stop in text for stop in stops)
    assert all(start <= len(whole) for start in starts)
    assert starts == sorted(starts)


@given(LETTERS, STOPS, st.lists(st.integers(min_value=0), max_size=40))
def test_nothing_is_held_back_without_need(text: str, stops: list[str], places: list[int]) -> None:
    pieces = cut_up(text.encode(), places)
    stream = TextStream(Pieces(pieces), [StopString.compile(stop) for stop in stops])
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
    pieces = cut_up(text.encode(), places)
    returned, starts, _ = run(pieces, stops, include_stop=True)
    end = next((end for end in range(len(text) + 1) if text[:end].endswith(tuple(stops))), len(text))
    assert "".join(returned) == text[:end]
    for n_tokens in range(1, len(returned)):
        assert "".join(returned[:n_tokens]) == b"".join(pieces[:n_tokens]).decode(errors="ignore")
    assert all(start <= end for start in starts)


@given(st.binary(max_size=30), st.lists(st.integers(min_value=0), max_size=30))
def test_arbitrary_bytes_never_break(data: bytes, places: list[int]) -> None:
    whole = "".join(run([data])[0])
    returned = run(cut_up(data, places))[0]
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
