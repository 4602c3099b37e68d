"""The launches of attention."""

from collections.abc import Callable

import torch

from model.attention.rope import RopeRows
from model.attention.tiles import Gpu
from model.attention.triton import TritonAttention
from model.batch import PageTable, Slice, StepBatch
from model.config.latent import Heads
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
    latent: int = 0,
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
        every = Heads(*heads, width, latent)
        cache = backend.allocate((4, *every.cache_shape), kv_dtype or dtype, CPU)
        n = len(inputs.slots)
        qkv = torch.empty(n, every.n_heads + every.n_stored, width, dtype=dtype)
        rope = RopeRows(torch.empty(n, 2, every.rope_dim // 2), torch.empty(n) if tempered else None)
        backend.attend(qkv, heads[0], rope, cache, backend.prepare(inputs))

    return launch


BF16, F32, FP8 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
LAUNCHES: dict[str, tuple[Callable[[], None], tuple[int, ...]]] = {
    "attention, bfloat16": (attention(BF16, (32, 8), 128), (89, 90)),
    "attention, bfloat16, short": (attention(BF16, (32, 8), 128, spans=(SHORT,)), (80,)),
    "attention, bfloat16, long": (attention(BF16, (32, 8), 128, spans=(LONG,)), (100,)),
    "attention, float32, odd group, wide odd head_dim": (attention(F32, (9, 3), 160), (86,)),
    "attention, float8": (attention(BF16, (32, 8), 128, kv_dtype=FP8, spans=(SHORT,)), (89,)),
    "attention, latents of Small 4": (attention(BF16, (32, 1), 320, 256, tempered=True), (80, 89, 90)),
    "attention, latents of Large 3": (attention(BF16, (128, 1), 576, 512, tempered=True), (89, 90)),
    "attention, latents in float8": (attention(BF16, (32, 1), 320, 256, kv_dtype=FP8, deterministic=True), (90,)),
    "attention, deterministic": (attention(BF16, (32, 8), 128, deterministic=True, tempered=True), (90,)),
}
"""The launched functions, and the compute capabilities, times ten, for which they are compiled."""
