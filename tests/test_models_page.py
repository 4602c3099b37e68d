"""docs/models.md names tests: each of them exists, and so does each case, among those of its own test."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
LEGEND = dict(re.findall(r"^\| ([A-Z]) \| `(\S+::\S+)` \|", PAGE, re.MULTILINE))
CELLS = re.findall(r"\b([A-Z])\[([^\]]+)\]", PAGE)
NAMES = sorted({*LEGEND.values(), *re.findall(r"`(tests/\S+::\S+)`", PAGE)})


@pytest.fixture(scope="module")
def collected(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The ids of all cases of the named tests: those of this run, if it has all files, else collected anew."""
    found = tuple(item.nodeid for item in request.session.items)
    files = {name.partition("::")[0] for name in found}
    return found if {name.partition("::")[0] for name in NAMES} <= files else collect()


def collect() -> tuple[str, ...]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-o", "addopts=", "-p", "no:cacheprovider"]
    run = subprocess.run([*command, *NAMES], cwd=ROOT, capture_output=True, text=True, check=False)
    return tuple(line for line in run.stdout.splitlines() if "::" in line)


@pytest.mark.parametrize("name", NAMES)
def test_every_test_exists(name: str, collected: tuple[str, ...]) -> None:
    assert any(found.partition("[")[0] == name for found in collected)


@pytest.mark.parametrize(("letter", "case"), sorted(set(CELLS)))
def test_every_case_exists(letter: str, case: str, collected: tuple[str, ...]) -> None:
    """The name of a case is the id of one of the letter's test, or whole words of it."""
    own = [found for found in collected if found.startswith(f"{LEGEND[letter]}[")]
    assert any(re.search(rf"(?<!\w){re.escape(case)}(?!\w)", found.partition("[")[2]) for found in own), case
