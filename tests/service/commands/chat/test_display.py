"""Words that wrap: against the standard library's textwrap, in any pieces."""

import textwrap

from hypothesis import given
from hypothesis import strategies as st

from service.commands.chat.display import Wrapped, cut_note

WORDS = st.lists(st.text("abcé-", min_size=1, max_size=9), min_size=1, max_size=30)


def wrapped(pieces: list[str], width: int) -> str:
    text = Wrapped(lambda: width)
    return "".join([*map(text.feed, pieces), text.flush()])


@given(WORDS, st.integers(10, 25), st.integers(1, 7))
def test_words_break_where_textwrap_breaks_them(words: list[str], width: int, size: int) -> None:
    text = " ".join(words)
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    expected = textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)
    assert wrapped(pieces, width) == expected


def test_spaces_at_the_start_of_a_line_stay() -> None:
    assert wrapped(["a:\n    b c\n\td"], 20) == "a:\n    b c\n    d"


def test_a_word_is_shown_when_it_is_complete() -> None:
    text = Wrapped(lambda: 20)
    assert [text.feed("one tw"), text.feed("o"), text.feed(" "), text.flush()] == ["one", "", " two", ""]


def test_lines_of_code_keep_their_length() -> None:
    code = "```python\nprint('a long line', 1, 2, 3)\n```\n"
    assert wrapped([code, "now words wrap again"], 12) == code + "now words\nwrap again"


def test_characters_of_two_columns_break_anywhere() -> None:
    assert wrapped(["水车转动"], 6) == "水车转\n动"


def test_the_limit_is_named() -> None:
    assert cut_note("length", {"max_tokens": 5}) == "[cut at max_tokens 5]"
    assert "context" in cut_note("length", {})
    assert cut_note("timeout", {}) == "[cut at the time limit]"
    assert cut_note("stop", {"max_tokens": 5}) == ""
