"""PyTorch's varlen_attn: its arguments, and the test for its presence. The contract test runs it too."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from model.attention import choose, varlen
from model.attention.varlen import VarlenAttention
from model.batch import PageTable, Slice, StepBatch
from model.errors import OptionError
from model.sampling_params import SamplingParams
from model.step.packing import pack
from tests.model.attention import flash
from tests.model.attention.attending import CPU, attend, random_heads
from tests.model.attention.dense import dense

CUDA = torch.device("cuda")


def part(start: int, stop: int, pages: tuple[int, ...], first_block: int = 0) -> Slice:
    return Slice(stop, [0] * stop, stop, start, stop, (PageTable(first_block, pages),), SamplingParams())


def test_pages_are_passed_in_logical_order() -> None:
    """Window 200, pages of 256: position 600 sees 401..600, in blocks 1 and 2; 90 is in block 0 alone."""
    batch = StepBatch((part(600, 603, (7, 3), first_block=1), part(90, 91, (5,))))
    prepared = VarlenAttention(flash.varlen_attn).prepare(pack(batch, 256, [200], CPU).pools[0])
    assert prepared.rows.tolist() == [0, 3, 4]
    assert prepared.used.tolist() == [603 - 256, 91]
    assert prepared.ends.tolist() == [0, 347, 438]
    assert prepared.blocks[0].tolist() == [7, 3]
    assert prepared.blocks[1, 0] == 5
    assert (prepared.max_queries, prepared.max_keys, prepared.window) == (3, 347, (199, 0))


@pytest.mark.parametrize(("window", "stop", "expected"), [(None, 90, (-1, -1)), (None, 91, (-1, 0)), (5, 90, (4, 0))])
def test_window_is_inclusive(window: int | None, stop: int, expected: tuple[int, int]) -> None:
    """A single token without a window sees all keys: it needs no mask."""
    (inputs,) = pack(StepBatch((part(89, stop, (5,)),)), 256, [window], CPU).pools
    assert VarlenAttention(flash.varlen_attn).prepare(inputs).window == expected


@pytest.mark.parametrize("window", [None, 1, 200, 256, 300])
def test_over_several_pages(window: int | None) -> None:
    data = random_heads([600, 20], (4, 2), 16)
    chunks = [[250, 5, 1, 1, 300, 1, 1], [3, 1]]
    for (q, k, v), found in zip(data, attend(VarlenAttention(flash.varlen_attn), data, chunks, window), strict=True):
        torch.testing.assert_close(found.double(), dense((q, k, v), window), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("width", [12, 264])
def test_head_dim_that_it_does_not_take(width: int) -> None:
    with pytest.raises(OptionError, match=f"heads of up to 256 in multiples of 8, the model has {width}; use"):
        attend(VarlenAttention(flash.varlen_attn), random_heads([3], (1, 1), width), [3], None)


# The presence of the kernel


@pytest.fixture
def capable(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend a GPU, and a kernel in PyTorch."""

    def pretend(capability: tuple[int, int] = (9, 0), kernel: Any = flash.varlen_attn) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
        monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", kernel)
        monkeypatch.setattr(varlen, "try_out", lambda *args: None)

    return pretend


def test_chosen_by_name_where_it_runs(capable: Callable[..., None]) -> None:
    capable()
    name, backend = choose("varlen", CUDA, torch.bfloat16)
    assert (name, backend.page_size) == ("varlen", 256)
    with pytest.raises(
        OptionError, match="--attention varlen keeps keys and values in bfloat16, float16, not in float32"
    ):
        choose("varlen", CUDA, torch.float32)
    with pytest.raises(OptionError, match=r"--attention varlen needs a CUDA device of compute capability 8\.0 or more"):
        choose("varlen", CPU, torch.bfloat16)
    capable((7, 5))
    with pytest.raises(OptionError, match=r"--attention varlen needs a CUDA device of compute capability 8\.0 or more"):
        choose("varlen", CUDA, torch.float16)


def of_2_11(
    query: Tensor, key: Tensor, value: Tensor, *, window_size: object, enable_gqa: bool, seqused_k: object
) -> None:
    """The signature in PyTorch 2.11."""


def test_a_pytorch_without_pages(capable: Callable[..., None]) -> None:
    capable(kernel=of_2_11)
    with pytest.raises(OptionError, match="--attention varlen needs a PyTorch whose varlen_attn takes block_table and"):
        choose("varlen", CUDA, torch.bfloat16)
    with pytest.raises(OptionError, match="--attention varlen needs a PyTorch"):
        VarlenAttention()


def test_installed_pytorch_has_the_signature() -> None:
    """The signature is that of PyTorch 2.13. The signature or `try_out` refuses the kernels of 2.11 and 2.12."""
    assert (varlen.installed() is not None) == (torch.__version__ >= "2.12")


def test_tried_out_before_it_is_trusted() -> None:
    def raises(*args: Any, **options: Any) -> Tensor:
        raise RuntimeError("num_splits requires FA3.\nMore.")

    def shifted(*args: Any, **options: Any) -> Tensor:
        return flash.varlen_attn(*args, **{**options, "window_size": (2, 0)})

    assert varlen.try_out(flash.varlen_attn, CPU, torch.bfloat16) is None
    assert varlen.try_out(raises, CPU, torch.bfloat16) == "does not work here: num_splits requires FA3."
    assert varlen.try_out(shifted, CPU, torch.bfloat16) == "gives wrong numbers here"
