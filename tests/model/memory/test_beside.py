"""Engines beside each other on one GPU: who holds which lock, and what is said of the other."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from model.errors import MemoryLack, OptionError
from model.memory import beside
from model.memory.beside import alone

CUDA = torch.device("cuda")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of locks on a machine of two GPUs, of which the second is the present one."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid=f"gpu-{index}"))
    return tmp_path / "noria"


@pytest.mark.parametrize(
    ("device", "n_gpus", "locked"), [("cpu", 1, []), ("cuda", 1, [1]), ("cuda", 3, [0, 1]), ("cuda", 0, [])]
)
def test_which_gpus_are_locked(folder: Path, device: str, n_gpus: int, locked: list[int]) -> None:
    with alone(torch.device(device), n_gpus, lambda stage, done: None):
        pass
    assert sorted(path.name for path in folder.glob("*")) == [f"gpu-{index}.lock" for index in locked]


def test_what_is_said_of_the_other_engine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def beside_another(names: object, waiting: Callable[[int], None]) -> Iterator[list[int]]:
        waiting(41)
        yield [42, 42]

    stages: list[str] = []
    monkeypatch.setattr(beside, "alone_on", beside_another)
    message = r"too small\. process 42 may have a model on the same GPU: start that with a lower --gpu-memory-utiliz"
    with pytest.raises(MemoryLack, match=message), alone(CUDA, 1, lambda stage, done: stages.append(stage)):
        raise MemoryLack("too small")
    assert stages == ["waiting for process 41, which loads a model on the same GPU"]
    with pytest.raises(OptionError, match=r"^another error$"), alone(CUDA, 1, lambda stage, done: None):
        raise OptionError("another error")
