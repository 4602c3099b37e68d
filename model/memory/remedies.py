"""What a user can change when a model does not fit: from plans alone, without weights."""

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from model.errors import NoriaError
from model.linear.schemes import KV_DTYPES, QUANTIZE_NAMES
from model.memory.plan import MemoryPlan, make_plan
from model.memory.sizes import size
from model.options import CPU_SHARE, GPU_UTILIZATION, RunnerOptions


def lack(plan: MemoryPlan, options: RunnerOptions) -> str:
    """Why no sequence can be served; empty if one can, or if the memory is unknown.

    With `--max-model-len` a sequence of that length must fit, else one token is enough.
    """
    if plan.memory is None or plan.cache is None:
        return ""
    fixed = plan.taken + (options.cache_memory or 0)
    if fixed > plan.memory:
        parts = ("weights", "images" * bool(plan.images), "--cache-memory" * bool(options.cache_memory))
        return f"the {' and '.join(filter(None, parts))} need {size(fixed)}, the memory is {size(plan.memory)}"
    wanted = options.max_model_len or 1
    if (plan.served or 0) >= wanted:
        return ""
    sequence = "a sequence" if wanted == 1 else f"a sequence of {wanted:,} tokens"
    return f"{sequence} does not fit in the {size(plan.cache)} that {size(plan.memory)} leave for keys and values"


def remedies(directory: Path, options: RunnerOptions, plan: MemoryPlan) -> Iterator[str]:
    """Changes to `options`, each of which alone makes room for a sequence, and then the memory that would be enough."""
    changes: list[dict[str, str | int]] = [{"quantize": name} for name in QUANTIZE_NAMES if name != "auto"]
    changes += [{"kv_dtype": name} for name in KV_DTYPES if name != "auto"]
    if options.max_model_len and plan.served:
        changes.append({"max_model_len": plan.served})
    for change in changes:
        if _helps(directory, replace(options, **change), plan.memory):  # type: ignore[arg-type]
            yield " ".join(f"--{name.replace('_', '-')} {value}" for name, value in change.items())
    yield f"{math.ceil(_enough(plan, options) / 2**30 * 10) / 10} GiB of memory"


def _helps(directory: Path, options: RunnerOptions, memory: int | None) -> bool:
    try:
        return not lack(make_plan(directory, options, memory), options)
    except NoriaError:  # the device does not have this scheme or data type
        return False


def _enough(plan: MemoryPlan, options: RunnerOptions) -> int:
    """Bytes of memory for a sequence of `--max-model-len` tokens, or else of the whole context."""
    sequence = options.cache_memory or plan.fits[-1].n_bytes
    if options.device == "cpu":
        return plan.taken + (sequence if options.cache_memory else int(sequence / CPU_SHARE))
    return int((plan.taken + plan.step + sequence) / (options.gpu_memory_utilization or GPU_UTILIZATION))
