"""docs/changing.md: every file that it names exists, and some rows are held against a sample of their kind."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = [line for line in (ROOT / "docs/changing.md").read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
PATH = re.compile(r"`([\w./-]+?/|[\w./-]+\.(?:py|c|h|js|html|md|json))`")
PRODUCT = [
    path.relative_to(ROOT).as_posix()
    for room in ("model", "service", "deploy", "tests", "docs")
    for path in (ROOT / room).rglob("*")
    if "vendor" not in path.parts
]


def test_every_file_that_a_row_names_exists() -> None:
    named = {name for row in ROWS for name in PATH.findall(row)}
    assert len(named) > 100
    models = {"config.json", "params.json"}  # a model's own files
    known = [f"/{path}" for path in PRODUCT]
    missing = {name for name in named if not any(f"{path}/".endswith(f"/{name.rstrip('/')}/") for path in known)}
    assert missing <= models


SAMPLES = {
    "a sampling parameter": r"\bmin_p\b",  # of the distribution, with a default in the model's files
    "a finish reason": r"[\"']repetition[\"']|\brepetition: ",
}
"""Rows, and the words of one of their kind."""


@pytest.mark.parametrize("kind", SAMPLES)
def test_a_row_names_all_files_of_a_sample(kind: str) -> None:
    (row,) = (row for row in ROWS if row.startswith(f"| {kind} |"))
    files = [path for path in PRODUCT if re.match(r"(model|service)/.*\.(py|c|h|js)$", path)]
    having = {path for path in files if re.search(SAMPLES[kind], (ROOT / path).read_text(encoding="utf-8"))}
    assert len(having) > 4
    names = {path.rpartition("/")[2] for path in having}
    assert {name for name in names if not re.search(rf"[`/]{re.escape(name)}`", row)} == set()
