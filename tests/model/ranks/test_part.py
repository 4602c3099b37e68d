"""What all ranks must have in common before they load, and what each takes of its host."""

import json
import os
import shutil
from pathlib import Path

import pytest

from model.checkpoint.open import open_checkpoint
from model.machine.host import choose_threads
from model.options import RunnerOptions
from model.ranks.meeting import difference
from model.ranks.part import Identity, _identity, _use_share_of_host
from model.ranks.world import World
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


@pytest.mark.parametrize(
    ("torchrun", "n_local", "threads"),
    [(True, 2, 4), (True, 1, 1), (False, 2, 1)],
    ids=["torchrun's own default", "one rank on the host: the user's", "without torchrun: the user's"],
)
def test_a_rank_computes_on_its_share_of_the_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, torchrun: bool, n_local: int, threads: int
) -> None:
    allowed = set(range(8))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: allowed)
    monkeypatch.setattr(os, "sched_setaffinity", lambda process, mine: (allowed.clear(), allowed.update(mine)))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    _use_share_of_host(RunnerOptions("", device="cpu"), World(1 % n_local, 2, 1 % n_local, n_local))
    assert choose_threads(root=tmp_path) == threads
    assert choose_threads(2, root=tmp_path) == 2
