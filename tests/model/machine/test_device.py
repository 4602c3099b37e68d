"""Which device serves, and what is said where NVIDIA's driver is there but PyTorch cannot use it."""

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from model.errors import OptionError
from model.machine import gpu
from model.machine.device import choose_device, unused_gpu

CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Thu Nov  2 18:50:03 UTC 2023\nGCC version:  gcc 12.2.0\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder)\n"


class Machine:
    """A machine with NVIDIA's driver and a PyTorch that cannot use it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch
        patch.setenv("CUDA_VISIBLE_DEVICES", "0")
        patch.setenv("PATH", str(folder))
        patch.setattr(gpu, "LOADED", folder / "version")
        patch.setattr(gpu, "DEVICES", (folder / "nvidiactl",))
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(torch, "__version__", "2.13.0")

    def driver(self, version: str, cuda: int | None, *, file: str = CLOSED, reachable: bool = True) -> None:
        """`cuda` is what cuDriverGetVersion gives; None: libcuda.so.1 does not load."""
        (self._folder / "version").write_text(file.format(version))
        if reachable:
            (self._folder / "nvidiactl").touch()

        def load(name: str) -> Any:
            if name != "libcuda.so.1" or cuda is None:
                raise OSError(f"{name}: cannot open shared object file")
            return SimpleNamespace(cuDriverGetVersion=lambda pointer: setattr(pointer._obj, "value", cuda))

        self._patch.setattr(ctypes, "CDLL", load)

    def pytorch(self, cuda: str | None, error: str = "") -> None:
        def init() -> None:
            raise RuntimeError(error)

        self._patch.setattr(torch.version, "cuda", cuda)
        self._patch.setattr(torch.cuda, "init", init)

    def refused(self) -> str:
        with pytest.raises(OptionError) as caught:
            choose_device("cuda")
        assert choose_device("auto").type == choose_device("cpu").type == "cpu"
        return str(caught.value)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


PAGE = "(pytorch.org/get-started/locally)"
OLD = "PyTorch 2.13.0 is built for CUDA {} and needs driver {} or newer; update the driver, install another build "


@pytest.mark.parametrize(
    ("version", "cuda", "built", "words"),
    [
        ("470.82.01", 11040, "12.6", "470.82.01 (CUDA 11.4), " + OLD.format("12.6", 525) + PAGE),
        ("535.129.03", None, "13.0", "535.129.03, " + OLD.format("13.0", 580) + PAGE),
        # A driver serves every minor version of its CUDA. What remains is PyTorch's own error.
        ("580.65.06", 13000, "13.2", "cannot use the GPU (Error 802: system not yet initialized); repair that"),
        ("580.65.06", 13000, None, "but this PyTorch, 2.13.0, is a CPU build; install one for CUDA " + PAGE),
        ("580.65.06", None, "13.0", "libcuda.so.1 does not load; give the container NVIDIA_DRIVER_CAPABILITIES"),
    ],
)
def test_why_pytorch_does_not_use_the_gpu(
    machine: Machine, version: str, cuda: int | None, built: str | None, words: str
) -> None:
    """Both versions, and the least driver of NVIDIA's table. Without libcuda.so.1 the driver's branch decides."""
    machine.driver(version, cuda, file=CLOSED if cuda is None else OPEN)
    machine.pytorch(built, "Error 802: system not yet\ninitialized")
    why = unused_gpu("auto")
    assert why is not None
    assert words in why
    assert machine.refused() == f"--device cuda: {why}, or use --device cpu"


def test_a_container_without_its_gpu(machine: Machine) -> None:
    """The driver's file in /proc is the host's: every container sees it."""
    machine.driver("580.65.06", None, reachable=False)
    machine.pytorch("13.0")
    assert "nvidiactl; give the container its GPUs (docker run --gpus all)" in machine.refused()


def test_a_choice_is_no_fault(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.driver("470.82.01", 11040)
    machine.pytorch("13.0")
    assert unused_gpu("cpu") is None
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert unused_gpu("auto") is None
        assert f"CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU" in machine.refused()


def test_no_driver(machine: Machine, tmp_path: Path) -> None:
    """nvidia-smi knows the driver where /proc does not, as in Windows' subsystem for Linux."""
    machine.pytorch("13.0")
    assert unused_gpu("auto") is None
    assert "finds no CUDA device, and there is no NVIDIA driver" in machine.refused()
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\ncase "$*" in *driver_version*) echo 470.82.01;; esac\n')
    tool.chmod(0o700)
    assert "470.82.01" in str(unused_gpu("auto"))


def test_a_gpu_that_is_used(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.driver("580.65.06", 13000)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert unused_gpu("auto") is None
    assert (choose_device("auto").type, choose_device("cpu").type) == ("cuda", "cpu")
    assert str(gpu.driver()) == "580.65.06 (CUDA 13.0)"
