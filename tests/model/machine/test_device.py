"""Which device serves, and what is said where NVIDIA's driver is there but PyTorch cannot use it."""

from pathlib import Path

import pytest
import torch

from model.errors import OptionError
from model.machine import gpu
from model.machine.device import choose_device, unused_gpu
from model.options import RunnerOptions
from model.setup import choose
from service.hosting.memory import device_of
from tests.model.driving import checkpoint, tiny

CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Thu Nov  2 18:50:03 UTC 2023\nGCC version:  gcc 12.2.0\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder)\n"


class Machine:
    """A machine with NVIDIA's driver and a PyTorch that cannot use it."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        patch.setenv("CUDA_VISIBLE_DEVICES", "0")
        patch.setenv("PATH", str(folder))
        patch.setattr(gpu, "LOADED", folder / "version")
        patch.setattr(torch.cuda, "is_available", lambda: False)
        patch.setattr(torch.cuda, "init", self._init)
        patch.setattr(torch, "__version__", "2.13.0")

    def driver(self, version: str, *, file: str = CLOSED) -> None:
        (self._folder / "version").write_text(file.format(version))

    def _init(self) -> None:
        raise RuntimeError("Error 802: system not yet\ninitialized")

    def refused(self) -> str:
        with pytest.raises(OptionError) as caught:
            choose_device("cuda")
        assert choose_device("auto").type == choose_device("cpu").type == "cpu"
        return str(caught.value)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize("file", [CLOSED, OPEN], ids=["closed", "open"])
def test_why_pytorch_does_not_use_the_gpu(machine: Machine, file: str) -> None:
    """PyTorch's own words, and the remedies."""
    machine.driver("470.82.01", file=file)
    why = unused_gpu("auto")
    assert why is not None
    assert "cannot use the GPU of NVIDIA's driver 470.82.01 (Error 802: system not yet initialized); update" in why
    assert "pytorch.org/get-started/locally" in why
    assert machine.refused() == f"--device cuda: {why}, or use --device cpu"


def test_a_choice_is_no_fault(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.driver("470.82.01")
    assert unused_gpu("cpu") is None
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert unused_gpu("auto") is None
        assert f"CUDA_VISIBLE_DEVICES={hidden!r} hides every GPU" in machine.refused()


def test_no_driver(machine: Machine, tmp_path: Path) -> None:
    """nvidia-smi knows the driver where /proc does not, as in Windows' subsystem for Linux."""
    assert unused_gpu("auto") is None
    assert "finds no CUDA device, and there is no NVIDIA driver" in machine.refused()
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\ncase "$*" in *driver_version*) echo 470.82.01;; esac\n')
    tool.chmod(0o700)
    assert "470.82.01" in str(unused_gpu("auto"))


def test_a_gpu_that_is_used(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.driver("580.65.06")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert unused_gpu("auto") is None
    assert (choose_device("auto").type, choose_device("cpu").type) == ("cuda", "cpu")
    assert gpu.driver() == "580.65.06"


@pytest.mark.parametrize(
    ("capability", "known"), [((7, 0), False), ((7, 5), True), ((8, 9), True), ((11, 0), False), ((13, 0), True)]
)
def test_a_gpu_for_which_pytorch_has_no_code(
    capability: tuple[int, int], known: bool, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The CPU serves, as with an old driver. Intermediate code runs on all later models."""
    machine.driver("580.65.06")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_75", "sm_80", "sm_86", "sm_90a", "compute_120"])
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert choose_device("auto").type == ("cuda" if known else "cpu")
    if known:
        assert unused_gpu("auto") is None
        return
    why = unused_gpu("auto")
    assert why is not None
    assert f"has no code for a GPU of compute capability {capability[0]}.{capability[1]}, only for sm_75, sm_80," in why
    assert machine.refused() == f"--device cuda: {why}, or use --device cpu"


def test_a_divided_gpu_has_unknown_memory(machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MIG: nvidia-smi tells the memory of the whole GPU, and nothing of a part."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text('#!/bin/sh\ncase "$*" in *gpu=mig*) echo Enabled;; *memory.total*) echo 81559, Enabled;; esac\n')
    tool.chmod(0o700)
    assert gpu.gpu_memory() is None
    assert gpu.is_divided()
    assert device_of("auto") == ("cuda", None)
    tool.write_text('#!/bin/sh\ncase "$*" in *gpu=mig*) echo "[N/A]";; *memory.total*) echo "24564, [N/A]";; esac\n')
    assert gpu.gpu_memory() == 24564 * 2**20
    assert not gpu.is_divided()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-0b1c")
    assert gpu.is_divided()


def test_pytorch_does_not_choose_the_attention_of_cudnn() -> None:
    """It plans anew for each shape."""
    torch.backends.cuda.enable_cudnn_sdp(True)
    choose(checkpoint(tiny((None,))), RunnerOptions("", device="cpu", cache_memory=2**22))
    assert not torch.backends.cuda.cudnn_sdp_enabled()
