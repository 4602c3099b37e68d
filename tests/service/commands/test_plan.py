"""`noria plan` for a model that several ranks share, as a user runs it."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from service import cli
from service.commands import plan as command
from tests.published import MISTRAL_7B as CONFIG


def plan(directory: Path, *flags: str, **config: Any) -> Result:
    (directory / "config.json").write_text(json.dumps(CONFIG | config))
    return CliRunner().invoke(cli.build(["plan"]), ["plan", str(directory), "--device", "cuda", *flags])


def test_a_line_for_each_rank(tmp_path: Path) -> None:
    result = plan(tmp_path, "--memory", "8GiB", "--tensor-parallel-size", "2", "--pipeline-parallel-size", "2")
    assert result.exit_code == 0
    assert "cuda, 8.00 GiB for each rank" in result.output
    assert "tp2 pp2, 4 ranks; the sizes below are of the rank that needs most" in result.output
    rows = [line.split("│")[1:-1] for line in result.output.splitlines() if "to" in line and "│" in line]
    found = [[cell.strip() for cell in row[:5]] for row in rows if len(row) == 6]
    assert found == [
        ["0", "0 to 15", "embeddings", "3.37 GiB", "32,768"],
        ["1", "0 to 15", "embeddings", "3.37 GiB", "32,768"],
        ["2", "16 to 31", "head", "3.37 GiB", "32,768"],
        ["3", "16 to 31", "head", "3.37 GiB", "32,768"],
    ]
    assert "LoRA" not in result.output  # ranks have no adapters


def test_the_driver_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.hosting.memory.gpu_memory", lambda: 24 * 2**30)
    monkeypatch.setattr(command, "driver", lambda: "580.65.06")
    assert "cuda of this machine with driver 580.65.06, 24.00 GiB" in plan(tmp_path).output
    assert "driver" not in plan(tmp_path, "--memory", "80GiB").output


def test_json_has_the_ranks(tmp_path: Path) -> None:
    made: dict[str, Any] = json.loads(plan(tmp_path, "--json", "--pipeline-parallel-size", "3").output)
    assert (made["layout"], [rank["layers"] for rank in made["ranks"]]) == ("pp3", [10, 11, 11])
    alone = json.loads(plan(tmp_path, "--json").output)
    assert (alone["layout"], len(alone["ranks"])) == ("single", 1)
    assert alone["ranks"][0]["weights"] == alone["weights"]


def test_the_layout_that_would_do(tmp_path: Path) -> None:
    result = plan(tmp_path, "--memory", "10GiB")
    assert result.exit_code == 1
    assert "or --tensor-parallel-size 2, or" in str(result.exception or result.output)
    refused = plan(tmp_path, "--tensor-parallel-size", "3")
    assert "choose one of: 1, 2, 4, 8, 16, 32" in str(refused.exception or refused.output)


def test_a_checkpoint_in_int8_is_dequantized_on_a_gpu(tmp_path: Path) -> None:
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel", "dynamic": False}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    quantization = {"quant_method": "compressed-tensors", "format": "int-quantized", "config_groups": groups}
    output = plan(tmp_path, quantization_config=quantization | {"ignore": ["lm_head"]}).output
    assert "13.49 GiB" in output
    assert "compressed-tensors, 8 bits; served as bfloat16" in output
    assert "served as" not in plan(tmp_path).output
