"""docs/models.md names tests: each of them exists, and each case is written in the tests."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
LEGEND = dict(re.findall(r"^\| ([A-Z]) \| `(\S+::\S+)` \|", PAGE, re.MULTILINE))
CELLS = re.findall(r"\b([A-Z])\[([^\]]+)\]", PAGE)
NAMES = sorted({*LEGEND.values(), *re.findall(r"`(tests/\S+::\S+)`", PAGE)})


@cache
def functions(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@cache
def strings() -> str:
    return "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py"))


@pytest.mark.parametrize("name", NAMES)
def test_every_test_exists(name: str) -> None:
    file, _, function = name.partition("::")
    assert function in functions(file)


@pytest.mark.parametrize(("letter", "case"), sorted(set(CELLS)))
def test_every_case_exists(letter: str, case: str) -> None:
    """The name of a case is a string in the tests, or it is made of such strings."""
    assert letter in LEGEND
    parts = [case] if f'"{case}"' in strings() else re.split("[- ]", case)
    assert all(f'"{part}' in strings() or f"/{part}" in strings() for part in parts), case
