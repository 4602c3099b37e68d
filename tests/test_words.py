"""The words of the source: docstrings of functions begin with a verb, some words do not occur, comments fit a line."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("model", "service")
COLUMNS = 120
WORDS = """
    abort add adopt allocate answer append apply ask assign attend begin blend build call cancel capture change check
    choose close compare compile complete compute concatenate consume continue convert convolve copy count create
    cut decide declare decode decorate delete deliver dequantize describe divide do download drop embed encode end
    estimate fail fetch fill find fit fold forget fork free freeze gather give go group hash hide hold import invert
    join keep kill launch leave let limit list listen load lock log look make map measure merge move multiply name
    normalize note obey observe open pack pad pair parse pass place plan pool predict print publish push put
    quantize queue quote raise rank read receive record refuse release remember remove render repeat replace report
    request reserve resolve return rotate round run sample save say scale see select send serve set share shorten
    show size sort split spread start stop store submit sum take talk tell tokenize transcribe translate turn unfold
    unload unpack upload use view wait wake work write yield
"""
VERBS = frozenset(WORDS.split())
"""The verbs with which docstrings begin. Add a verb here when a function does something new."""
RETIRED = re.compile(r"(?<![a-z])(asked|shown|wanted|wishes|lacks|settle[sd]?|ear)(?![a-z])", re.IGNORECASE)
"""Words that say too little or mean several things, also as parts of names: `n_asked`."""
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
"""A comment in C."""


def sources(folder: str, *suffixes: str) -> Iterator[tuple[str, str]]:
    """Yield path and text of each file in a folder."""
    for path in sorted((ROOT / folder).rglob("*")):
        if path.suffix in suffixes:
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def without_verb(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and docstring of each function whose docstring does not begin with a verb."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (words := ast.get_docstring(node)):
            first = re.match(r"[A-Za-z]+", words)
            if first is None or first[0].lower() not in VERBS:
                yield node.lineno, f"{node.name}: {words.splitlines()[0]}"


def with_wrong_verb(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and docstring of each function that returns nothing and says Return, or says it in place of Yield."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (words := ast.get_docstring(node)):
            nothing = isinstance(node.returns, ast.Constant) and node.returns.value is None
            own = [part for part in ast.walk(node) if isinstance(part, ast.Yield | ast.YieldFrom)]
            if words.startswith("Return ") and not words.startswith("Return why") and (nothing or own):
                yield node.lineno, f"{node.name}: {words.splitlines()[0]}"


def with_retired_word(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line with a retired word."""
    yield from ((number, line) for number, line in enumerate(text.splitlines(), 1) if RETIRED.search(line))


def with_long_comment(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line in which a comment in C goes beyond the last column."""
    lines = text.splitlines()
    for comment in COMMENT.finditer(text):
        first, last = (text.count("\n", 0, place) for place in (comment.start(), comment.end()))
        yield from ((number + 1, lines[number]) for number in range(first, last + 1) if len(lines[number]) > COLUMNS)


def listed(path: str, found: Iterator[tuple[int, str]]) -> list[str]:
    """List places and their texts for the message of a test that fails."""
    return [f"{path}:{line}: {text.strip()}" for line, text in found]


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_of_functions_begin_with_a_verb(folder):
    found = [line for path, text in sources(folder, ".py") for line in listed(path, without_verb(text))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_returns_says_so(folder):
    found = [line for path, text in sources(folder, ".py") for line in listed(path, with_wrong_verb(text))]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", FOLDERS)
def test_retired_words_do_not_occur(folder):
    found = [
        line for path, text in sources(folder, ".py", ".c", ".h") for line in listed(path, with_retired_word(text))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("folder", FOLDERS)
def test_comments_fit_into_a_line(folder):
    found = [line for path, text in sources(folder, ".c", ".h") for line in listed(path, with_long_comment(text))]
    for path, text in sources(folder, ".py"):
        found += listed(path, ((n, line) for n, line in enumerate(text.splitlines(), 1) if len(line) > COLUMNS))
    assert not found, "\n".join(found)


def test_the_rules_find_what_breaks_them():
    text = 'def f(n_asked):\n    """The result."""\n\n\ndef g():\n    """Return it."""\n'
    assert list(without_verb(text)) == [(1, "f: The result.")]
    assert list(with_wrong_verb('def g() -> None:\n    """Return it."""\n')) == [(1, "g: Return it.")]
    assert list(with_wrong_verb('def g():\n    """Return it."""\n    yield 1\n')) == [(1, "g: Return it.")]
    assert list(with_retired_word("early = heard\n" + text)) == [(2, "def f(n_asked):")]
    long = "x" * COLUMNS
    assert [line for line, _ in with_long_comment(f"{long}y;\nint a; /* {long}\n * short */ {long}\n// {long}\n")] == [
        2,
        3,
        4,
    ]
