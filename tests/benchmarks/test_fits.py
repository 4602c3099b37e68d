"""The table of models and machines in docs/models.md, and its numbers against parameters of model cards."""

import re
from pathlib import Path

import pytest

from benchmarks.fits import CONTEXT, GIB, cells, least_memory, plan
from tests.model.checkpoint.published import written

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
SECTION = PAGE.partition("## Which machine\n")[2].partition("\n## ")[0]
TABLE = re.findall(r"^\| (.+) \|$", SECTION, re.MULTILINE)
RATES = (30.0, 60.0, 400.0)


def test_every_row_of_the_page_is_what_the_plan_says(tmp_path: Path) -> None:
    title, _, *rows = (tuple(cell.strip() for cell in row.split("|")) for row in TABLE)
    assert title[3:] == tuple(f"tokens/s at {rate:g} GB/s" for rate in RATES)
    assert len(rows) >= 10
    for name, *found in rows:
        (tmp_path / name).mkdir()
        assert found == cells(written(name, tmp_path / name), RATES), name


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Nemo 12B", 12.2478 - 131072 * 5120 / 1e9),
        ("Mixtral 8x22B", 39.15 - 32000 * 6144 / 1e9),  # 39 billion active parameters
        ("Ministral 3 3B", 3.429),  # a tied head is read, the table of embeddings beside it is not
    ],
)
def test_a_token_reads_each_active_weight_once(name: str, billions: float, tmp_path: Path) -> None:
    """A weight of int8 takes a byte, of int4 five eighths, with their scales; norms and routers are small."""
    directory = written(name, tmp_path)
    for scheme, share in (("int8", 1.0), ("int4", 0.625)):
        assert plan(directory, scheme, None).read / 1e9 == pytest.approx(share * billions, rel=0.01)


def test_the_memory_is_the_least_that_holds_a_sequence(tmp_path: Path) -> None:
    directory = written("Nemo 12B", tmp_path)
    gib = least_memory(directory, "int8")
    for memory, fits in ((gib, True), (gib - 1, False)):
        assert ((plan(directory, "int8", memory * GIB).served or 0) >= CONTEXT) == fits


def test_experts_in_4_bit_floats_are_read_so(tmp_path: Path) -> None:
    """Small 4 in MB a layer: 70.8 of experts in NVFP4, 56.1 of attention in bfloat16; then the head in int8."""
    read = plan(written("Small 4, NVFP4", tmp_path), "int8", None).read
    assert read == pytest.approx(36 * (70.8e6 + 56.1e6 / 2) + 131072 * 4096, rel=0.03)
