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


@pytest.mark.parametrize(
    ("driver", "cuda", "built", "least"),
    [("470.82.01", 11040, "12.6", 525), ("570.195.03", 12080, "13.0", 580), ("535.129.03", None, "13.0", 580)],
)
def test_an_old_driver(machine: Machine, driver: str, cuda: int | None, built: str, least: int) -> None:
    """Both versions, and the least driver of NVIDIA's table. Without libcuda.so.1 the driver's branch decides."""
    machine.driver(driver, cuda)
    machine.pytorch(built)
    shown = driver if cuda is None else f"{driver} (CUDA {cuda // 1000}.{cuda % 1000 // 10})"
    why = (
        f"NVIDIA's driver is {shown}, PyTorch 2.13.0 is built for CUDA {built} and needs driver {least} or newer; "
        "update the driver, install another build (pytorch.org/get-started/locally)"
    )
    assert machine.refused() == f"--device cuda: {why}, or use --device cpu"
    assert unused_gpu("auto") == why


def test_a_newer_driver_of_the_same_cuda_is_not_old(machine: Machine) -> None:
    """A driver serves every minor version of its CUDA. What remains is PyTorch's own error."""
    machine.driver("580.65.06", 13000, file=OPEN)
    machine.pytorch("13.2", "Error 802: system not yet\ninitialized")
    assert "cannot use the GPU (Error 802: system not yet initialized)" in machine.refused()
    assert "driver is 580.65.06 (CUDA 13.0), PyTorch 2.13.0 is built for CUDA 13.2" in str(unused_gpu("auto"))


def test_a_cpu_build(machine: Machine) -> None:
    machine.driver("580.65.06", 13000)
    machine.pytorch(None)
    assert "this PyTorch, 2.13.0, is a CPU build; install one for CUDA" in machine.refused()
    assert "CPU build" in str(unused_gpu("auto"))


def test_a_container_without_its_gpu(machine: Machine) -> None:
    """The driver's file in /proc is the host's: every container sees it."""
    machine.driver("580.65.06", None, reachable=False)
    machine.pytorch("13.0")
    assert "nvidiactl; give the container its GPUs (docker run --gpus all)" in machine.refused()
    machine.driver("580.65.06", None)
    assert "libcuda.so.1 does not load; give the container NVIDIA_DRIVER_CAPABILITIES" in machine.refused()


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
