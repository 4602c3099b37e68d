"""What all ranks must have in common before they load."""

import json
import shutil
from pathlib import Path

from model.checkpoint.open import open_checkpoint
from model.options import RunnerOptions
from model.ranks.meeting import difference
from model.ranks.part import Identity, _identity
from model.setup import choose
from model.sharding.layout import Layout
from tests.model import pixtral


def identity(directory: Path) -> Identity:
    checkpoint = open_checkpoint(directory)
    options = RunnerOptions(str(directory), device="cpu", tensor_parallel_size=2)
    return _identity(choose(checkpoint, options, Layout(2).place(0)), checkpoint)


def test_the_same_weights_with_another_configuration_differ(tmp_path: Path) -> None:
    one = pixtral.save_native("mistral3", tmp_path / "one")
    other = Path(shutil.copytree(one, tmp_path / "other"))
    params = json.loads((other / "params.json").read_text())
    assert difference(1, identity(one), identity(other)) is None
    (other / "params.json").write_text(json.dumps(params | {"rope_theta": 5e5}))
    found = difference(1, identity(one), identity(other))
    assert found is not None
    assert found.startswith("rank 1 has rope_theta 500000.0, rank 0 has 1000000.0")
