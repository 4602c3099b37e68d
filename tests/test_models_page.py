"""docs/models.md names tests: each of them exists, and so does each case, among those of its own test."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.random_gguf import MIXES
from tests.model.checkpoint.published import ROWS, written

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


def test_downloads_are_what_the_shapes_say(tmp_path: Path) -> None:
    """Bytes of Q4_K_M, or of bfloat16, of the published shapes, in GB; a tied head is in the table of embeddings."""
    shapes = {"Ministral-3-3B": "Ministral 3 3B", "Ministral-3-8B": "Ministral 3 8B", "Voxtral-Mini": "Voxtral Mini 3B"}
    shapes["Mistral-Small-3.2"] = "Small 3.2, Devstral, Magistral"
    rows = re.findall(r"^\| \d+ GiB \| `noria serve (\S+)` \| ([\d.]+) GB \|", PAGE, re.MULTILINE)
    assert len(rows) == 4
    for model, told in rows:
        name = next(shape for part, shape in shapes.items() if part in model)
        (tmp_path / name).mkdir()
        sizes = q4_k_m(written(name, tmp_path / name)), 2 * (ROWS[name].parameters + ROWS[name].encoder)
        n_bytes = sizes[0] if model.endswith(":Q4_K_M") else sizes[1]
        assert f"{n_bytes / 1e9:.1f}" == told, model


def q4_k_m(directory: Path) -> int:
    """The bytes of the matrices as `llama-quantize` writes them."""
    config = json.loads((directory / "config.json").read_text())
    text = config.get("text_config", config)
    layers, dim, hidden = text["num_hidden_layers"], text["hidden_size"], text["intermediate_size"]
    heads, kv = (text[f"num_{kind}_heads"] * text["head_dim"] for kind in ("attention", "key_value"))
    per_layer = {"attn_q": heads, "attn_k": kv, "attn_v": kv, "attn_output": heads}
    values = {name: width * dim for name, width in per_layer.items()}
    values |= dict.fromkeys(("ffn_gate", "ffn_up", "ffn_down"), hidden * dim)
    sizes = [(f"blk.{n}.{name}", count) for n in range(layers) for name, count in values.items()]
    tied = config.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
    sizes += [(name, text["vocab_size"] * dim) for name in ("output", *(() if tied else ("token_embd",)))]
    kinds = [(MIXES["Q4_K_M"](name, layers), count) for name, count in sizes]
    return sum(count // kind.values * kind.n_bytes for kind, count in kinds)
