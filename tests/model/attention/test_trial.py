"""A backend is tried out at a model's heads: what fails, or gives wrong numbers, does not serve."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from model import attention
from model.attention import choose, trial
from model.attention.base import Attention
from model.attention.sdpa import SdpaAttention
from model.attention.triton import TritonAttention
from model.errors import OptionError
from model.kernels import cuda as kernels
from tests.model.attention.attending import CPU, make

GPU = torch.device("cuda")
BF16 = torch.bfloat16


@pytest.mark.parametrize("name", ["triton", "sdpa", "paged"])
@pytest.mark.parametrize(
    ("heads", "dtype"), [((4, 2, 16), torch.float32), ((3, 1, 80), BF16), ((6, 1, 40, 32), torch.float32)]
)
def test_a_backend_that_works(name: str, heads: tuple[int, ...], dtype: torch.dtype) -> None:
    activations = torch.float32 if name == "paged" else dtype
    trial.try_out(name, make(name), heads, dtype, activations, CPU)


def errors() -> list[Exception]:
    """What Triton raises for a kernel that does not fit a GPU, or that its assembler or compiler refuses."""
    pytest.importorskip("triton")
    from triton.compiler.errors import CompilationError
    from triton.runtime.errors import OutOfResources, PTXASError

    return [OutOfResources(119000, 101376, "shared memory"), PTXASError("no\nregisters"), CompilationError("x", None)]


class Broken(SdpaAttention):
    """Raises an error, or returns something else than the means."""

    def __init__(self, error: Exception | None = None) -> None:
        self._error = error

    def attend(self, *args: Any) -> Tensor:
        if self._error is not None:
            raise self._error
        return super().attend(*args) * 1.5


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[Attention], None]:
    """Pretend a GPU that runs Triton, and a backend that computes there."""
    monkeypatch.setattr(kernels, "obstacle", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))
    try_out = trial.try_out

    def pretend(backend: Attention) -> None:
        def on_cpu(name: str, found: Attention, *others: Any) -> None:
            try_out(name, backend if isinstance(found, TritonAttention) else found, *others[:-1], CPU)

        monkeypatch.setattr(attention, "try_out", on_cpu)

    return pretend


@pytest.mark.parametrize("number", range(4))
def test_triton_that_fails_at_these_heads_leaves_them_to_sdpa(
    number: int, gpu: Callable[[Attention], None], caplog: pytest.LogCaptureFixture
) -> None:
    error = [*errors(), None][number]
    gpu(Broken(error))
    why = "numbers are wrong" if error is None else f"{type(error).__name__}: "
    message = rf"--attention triton does not work here for 32 query heads and 8 key heads of 128 \(.*{why}"
    with pytest.raises(OptionError, match=message):
        choose("triton", GPU, BF16, BF16, heads=(32, 8, 128))
    assert not caplog.records
    name, backend = choose("auto", GPU, BF16, BF16, heads=(32, 8, 128))
    assert (name, type(backend)) == ("sdpa", SdpaAttention)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "\n" not in record.message
    assert why in record.message
    with pytest.raises(OptionError, match=f"{message}.*, but --deterministic needs --attention paged"):
        choose("auto", GPU, BF16, BF16, heads=(32, 8, 128), deterministic=True)
    with pytest.raises(OptionError, match=r"^--attention triton does not .*, but --kv-dtype fp8 needs "):
        choose("auto", GPU, torch.float8_e4m3fn, BF16, heads=(32, 8, 128))
    assert len(caplog.records) == 1


def test_heads_that_triton_does_not_serve(gpu: Callable[[Attention], None], caplog: pytest.LogCaptureFixture) -> None:
    gpu(make("triton"))
    assert choose("auto", GPU, torch.float32, heads=(2, 1, 64))[0] == "triton"
    assert not caplog.records
    assert choose("auto", GPU, torch.float32, heads=(2, 1, 512))[0] == "sdpa"
    assert "--attention triton serves heads of up to 256" in caplog.text


def test_want_of_memory_is_not_the_kernels_fault(gpu: Callable[[Attention], None]) -> None:
    gpu(Broken(torch.OutOfMemoryError("CUDA out of memory")))
    with pytest.raises(torch.OutOfMemoryError):
        choose("auto", GPU, BF16, BF16, heads=(32, 8, 128))
