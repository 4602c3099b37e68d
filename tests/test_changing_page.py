"""docs/changing.md: every file that it names exists, and the row of a sampling parameter names all files of one."""

import re
from pathlib import Path

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


def test_a_sampling_parameter_is_in_the_files_of_its_row() -> None:
    """Of the distribution, with a default in the model's files: `min_p` is such a one."""
    (row,) = (row for row in ROWS if row.startswith("| a sampling parameter |"))
    word = re.compile(r"\bmin_p\b")
    files = [path for path in PRODUCT if re.match(r"(model|service)/.*\.(py|c|h|js)$", path)]
    having = {path.rpartition("/")[2] for path in files if word.search((ROOT / path).read_text(encoding="utf-8"))}
    assert len(having) > 10
    assert {name for name in having if f"{name}`" not in row and f"/{name}" not in row} == set()
