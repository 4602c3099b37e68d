"""Changes that a user can make when a model does not fit: from plans alone, without weights."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from model.config.cache_formats import KV_DTYPES
from model.errors import NoriaError
from model.linear.schemes import QUANTIZE_NAMES
from model.memory.plan import MemoryPlan, make_plan
from model.memory.sizes import size
from model.options import CPU_SHARE, GPU_UTILIZATION, RunnerOptions
from model.sharding.shard import LARGEST_TENSOR


def lack(plan: MemoryPlan, options: RunnerOptions) -> str:
    """Return why no sequence can be served; empty if one can, or if the memory is unknown.

    With `--max-model-len` a sequence of that length must fit, else one token is enough.
    """
    if plan.memory is None or plan.cache is None:
        return ""
    fixed = plan.taken + (options.cache_memory or 0)
    if fixed > plan.memory:
        parts = ("weights", plan.encodes, "--cache-memory" * bool(options.cache_memory))
        each = " of a rank" if len(plan.ranks) > 1 else ""
        return f"the {' and '.join(filter(None, parts))}{each} need {size(fixed)}, the memory is {size(plan.memory)}"
    length = options.max_model_len or 1
    if (plan.served or 0) >= length:
        return ""
    sequence = "a sequence" if length == 1 else f"a sequence of {length:,} tokens"
    return f"{sequence} does not fit in the {size(plan.cache)} that {size(plan.memory)} leave for keys and values"


def remedies(directory: Path, options: RunnerOptions, plan: MemoryPlan) -> Iterator[str]:
    """Yield changes to `options`, each of which alone lets a sequence fit, and then the memory that would be enough."""
    changes: list[dict[str, str | int]] = [{"quantize": name} for name in QUANTIZE_NAMES if name != "auto"]
    changes += [{"kv_dtype": name} for name in KV_DTYPES if name != "auto"]
    if options.max_model_len and plan.served:
        changes.append({"max_model_len": plan.served})
    total = _total(plan, options)
    for change in changes:
        if _helps(directory, replace(options, **change), total):  # type: ignore[arg-type]
            yield " ".join(f"--{name.replace('_', '-')} {value}" for name, value in change.items())
    if (more := _more_ranks(directory, options, plan)) is not None:
        yield f"--tensor-parallel-size {more}"
    each = " on each GPU" if options.device == "cuda" and len(plan.ranks) > 1 else ""
    yield f"{math.ceil(_enough(plan, options) / 2**30 * 10) / 10} GiB of memory{each}"


def _more_ranks(directory: Path, options: RunnerOptions, plan: MemoryPlan) -> int | None:
    """Return the least number of GPUs, each as large as this one, that hold the model together; None if too few can."""
    if options.device == "cpu":  # there all ranks share one memory
        return None
    sizes = range(options.tensor_parallel_size + 1, LARGEST_TENSOR + 1)
    return next((n for n in sizes if _helps(directory, replace(options, tensor_parallel_size=n), plan.memory)), None)


def _total(plan: MemoryPlan, options: RunnerOptions) -> int | None:
    """Return the memory that the plan was made for: of each GPU, or of the host that all ranks share."""
    return plan.memory * len(plan.ranks) if plan.memory and options.device == "cpu" else plan.memory


def _helps(directory: Path, options: RunnerOptions, memory: int | None) -> bool:
    try:
        return not lack(make_plan(directory, options, memory), options)
    except NoriaError:  # the device does not have this scheme or data type
        return False


def _enough(plan: MemoryPlan, options: RunnerOptions) -> int:
    """Return the bytes of memory for a sequence of `--max-model-len` tokens, or else of the whole context."""
    sequence = options.cache_memory or plan.fits[-1].n_bytes
    if options.device == "cpu":
        each = plan.taken + (sequence if options.cache_memory else int(sequence / CPU_SHARE))
        return each * len(plan.ranks)
    return int((plan.taken + plan.step + plan.graphs + sequence) / (options.gpu_memory_utilization or GPU_UTILIZATION))
