"""The memory of a GPU for keys and values, measured by running the largest step before their pools are allocated."""

from collections.abc import Callable

import torch

from model.batch import PageTable, PoolSpec, Runner, Slice, StepBatch
from model.memory.sizes import PoolSizes, gpu_budget
from model.sampling_params import RANGES, SamplingParams

Build = Callable[[int, tuple[PoolSpec, ...]], Runner]
"""Makes a runner for sequences of at most this many tokens, with these pools."""


class CudaMemory:
    """The memory of a CUDA device in bytes, without what the allocator caches: it frees that when needed."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def total(self) -> int:
        return torch.cuda.mem_get_info(self._device)[1]

    def watch(self) -> None:
        """Free unused memory, and begin to measure the peak."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self._device)

    def peak(self) -> int:
        """Return the greatest number of bytes that this process and all others used at one time since `watch`."""
        torch.cuda.synchronize(self._device)
        free, total = torch.cuda.mem_get_info(self._device)
        others = total - free - torch.cuda.memory_reserved(self._device)
        return others + torch.cuda.max_memory_allocated(self._device)


def watched(device: torch.device) -> CudaMemory | None:
    """Return the memory of a GPU; None for a CPU, whose memory other programs may need."""
    return CudaMemory(device) if device.type == "cuda" else None


def cache_budget(
    sizes: PoolSizes, length: int, upper: int, utilization: float | None, memory: CudaMemory, build: Build
) -> int:
    """Return the bytes for keys and values beside the loaded weights and the largest step; 0 if none are left.

    `length` is the longest sequence to serve, in tokens; `upper` bytes would be left if a step took nothing.
    """
    n_pages = -(-sizes.max_step_tokens // sizes.page_size) + 1
    specs = tuple(PoolSpec(window, n_pages) for window in sizes.config.pool_windows)
    memory.watch()
    runner = build(length, specs)
    runner.launch(largest_step(sizes, length, upper, n_pages))()
    used = memory.peak() - sum(n_pages * sizes.page_bytes(window) for window in sizes.config.pool_windows)
    del runner
    memory.watch()
    return gpu_budget(memory.total, used, utilization)


def largest_step(sizes: PoolSizes, length: int, upper: int, n_pages: int) -> StepBatch:
    """Make a step with as many sequences as allowed: one computes and scores the last chunk of the longest prompt.

    The others decode. Their length is twice the length for which `upper` bytes hold all of them, but at most `length`.
    All share the first `n_pages` pages of each pool, because nobody reads what they write.
    """
    others = max(1, min(length, sizes.longest(2 * upper // sizes.max_sequences, length * sizes.position_bytes)))
    tokens = [0] * length
    pages = [block % n_pages for block in range(-(-length // sizes.page_size))]
    tables = tuple(PageTable(0, pages) for _ in sizes.config.pool_windows)
    n_logprobs = int(RANGES["logprobs"][1])
    sampled = SamplingParams(temperature=1.0, top_p=0.9, logprobs=n_logprobs)
    scored = SamplingParams(temperature=1.0, top_p=0.9, logprobs=n_logprobs, prompt_logprobs=n_logprobs)
    n_others = sizes.max_sequences - 1
    chunk = min(max(1, sizes.max_step_tokens - n_others), length)
    slices = [Slice(n, tokens[:others], others, others - 1, others, tables, sampled) for n in range(n_others)]
    return StepBatch((*slices, Slice(n_others, tokens, length, length - chunk, length, tables, scored)))
