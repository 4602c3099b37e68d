"""The launches of attention."""

from collections.abc import Callable

import torch

from model.attention.rope import RopeRows
from model.attention.tiles import Gpu
from model.attention.triton import TritonAttention
from model.batch import PageTable, Slice, StepBatch
from model.sampling_params import SamplingParams
from model.step.packing import pack


def target() -> tuple[int, int]:
    """The compute capability of the pretended GPU."""
    from triton.runtime import driver

    major, minor = divmod(driver.active.get_current_target().arch, 10)
    return major, minor


CPU = torch.device("cpu")


SHORT, LONG = (99, 100), (0, 100)
"""A slice of one token, and of 100: start and stop."""


def attention(
    dtype: torch.dtype,
    heads: tuple[int, int],
    width: int,
    *,
    kv_dtype: torch.dtype | None = None,
    spans: tuple[tuple[int, int], ...] = (LONG, SHORT),
    deterministic: bool = False,
    tempered: bool = False,
) -> Callable[[], None]:
    """A function that launches attention for these slices."""

    def launch() -> None:
        backend = TritonAttention(deterministic, Gpu(target(), 132))
        slices = tuple(
            Slice(stop, [0] * stop, stop, start, stop, (PageTable(0, range(4)),), SamplingParams())
            for start, stop in spans
        )
        (inputs,) = pack(StepBatch(slices), backend.page_size, [None], CPU).pools
        cache = backend.allocate((4, heads[1], width), kv_dtype or dtype, CPU)
        n = len(inputs.slots)
        qkv = torch.empty(n, heads[0] + 2 * heads[1], width, dtype=dtype)
        rope = RopeRows(torch.empty(n, 2, width // 2), torch.empty(n) if tempered else None)
        backend.attend(qkv, heads[0], rope, cache, backend.prepare(inputs))

    return launch


BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
LAUNCHES: dict[str, tuple[Callable[[], None], tuple[int, ...]]] = {
    "attention, bfloat16": (attention(BF16, (32, 8), 128), (89, 90)),
    "attention, bfloat16, short": (attention(BF16, (32, 8), 128, spans=(SHORT,)), (80,)),
    "attention, bfloat16, long": (attention(BF16, (32, 8), 128, spans=(LONG,)), (100,)),
    "attention, float32, odd group, wide odd head_dim": (attention(F32, (9, 3), 160), (86,)),
    "attention, float8": (attention(BF16, (32, 8), 128, kv_dtype=FP8, spans=(SHORT,)), (89,)),
    "attention, deterministic": (attention(BF16, (32, 8), 128, deterministic=True, tempered=True), (90,)),
}
"""The launched functions, and the compute capabilities, times ten, for which they are compiled."""
