"""README.md: its claim is computed from its table, the table from recorded runs; models and commands have one form."""

import json
import re
from pathlib import Path

import pytest

from model.checkpoint.resolve import resolve
from model.errors import ModelError

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
WHY = README.partition("**Why**\n")[2].partition("**Why not**")[0]
CLAIM = " ".join(next(item for item in WHY.split("\n- ") if "times as fast" in item).split())
SECTION = README.partition("\n## How fast\n")[2].partition("\n## ")[0]
ROWS = [[cell.strip() for cell in row.split("|")] for row in re.findall(r"^\| (\w.*) \|$", SECTION, re.MULTILINE)]
RUN = json.loads((ROOT / "benchmarks/results/2026-11-27-avx512_bf16-2c-http.json").read_text(encoding="utf-8"))
CASES = (
    (r"(prompts) of 512 tokens, (\d+) bits", "HTTP {}"),
    (r"(\d+) streams, (\d+) bits", "HTTP {}"),
    (r"(\d+) streams, (\d+) bits: first token", "HTTP {}: ms to first token, p50"),
    (r"(\d+) streams, (\d+) bits: slowest token of 100", "HTTP {}: ms between tokens, p99"),
)
"""Names of rows, with a number and the bits, and the names that `benchmarks.peers` gives the cases of the one run."""


def numbers(text: str) -> list[float]:
    return [float(found) for found in re.findall(r"\d+(?:\.\d+)?", text)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row[0]))
def test_a_row_is_what_the_run_found(row: list[str]) -> None:
    name, ours, best, ratio = row
    (number, bits), case = next((m.groups(), case) for words, case in CASES if (m := re.fullmatch(words, name)))
    wanted = (case.format(number), bits)
    (found,) = (each for each in RUN["medians"] if (each["case"], each["bits"]) == wanted)
    engine, value = next(iter(found["peers"].items()))
    assert best.replace("*", "").lower().startswith(engine.partition(" ")[0])
    assert numbers(ours) == [round(found["ours"])]
    assert numbers(best)[-1] == round(value)
    better = value / found["ours"] if "ms" in case else found["ours"] / value
    assert float(ratio) == round(better, 1)


def test_the_claim_is_that_of_the_table() -> None:
    """The span of the rows that are won; the rows that are lost are in the same sentence, with their figure."""
    assert len(ROWS) > 5
    ratios = [float(row[3]) for row in ROWS]
    won, lost = [ratio for ratio in ratios if ratio > 1], [row for row in ROWS if float(row[3]) <= 1]
    assert f"is {min(won)} to {max(won)} times as fast as the best of" in CLAIM
    words = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
    assert f"in {words[len(won)]} of [{words[len(ROWS)]} rows](#how-fast); in {words[len(lost)]}, " in CLAIM
    for name, _, best, ratio in lost:
        assert all(word in CLAIM for word in ("slowest token of 100", *re.findall(r"\d+ \w+", name)))
        assert f"it is {ratio} times as fast as {best.split()[0]}" in CLAIM
    assert CLAIM.count(". ") == 0


def test_models_are_those_of_the_page_of_models() -> None:
    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+ GiB \|.+$", README, re.MULTILINE)
    assert [row.split()[1] for row in rows] == ["8", "16", "32"]
    assert all(row in page for row in rows)


def test_an_unknown_model_shows_names_of_the_page_of_models() -> None:
    with pytest.raises(ModelError) as caught:
        resolve("mistral")
    names = re.findall(r"\w+/[\w.:-]+", str(caught.value))
    page = (ROOT / "docs/models.md").read_text(encoding="utf-8")
    assert len(names) == 2
    assert all(f"`noria serve {name}`" in page for name in names)


def test_commands_have_one_form_and_trouble_is_last() -> None:
    """`noria`, for which set-up prints how to set PATH."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    assert [
        page for page in pages if re.search(r"^ {4}\S*bin/noria", page.read_text(encoding="utf-8"), re.MULTILINE)
    ] == []
    assert "](docs/trouble.md)" in README.rstrip().splitlines()[-1]
    assert "export PATH=" in README
    assert "export PATH=" in (ROOT / "scripts/setup").read_text(encoding="utf-8")
