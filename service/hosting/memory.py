"""The memory of models by their plans, before anything is read."""

from dataclasses import dataclass, replace

from model.checkpoint.resolve import resolve
from model.errors import MemoryLack, OptionError
from model.machine.gpu import gpu_memory, is_divided
from model.machine.host import free_memory
from model.memory.plan import make_plan
from model.memory.remedies import lack
from model.options import GPU_UTILIZATION, RunnerOptions
from service.generation.startup import runner_options
from service.settings import BUDGET_SHARE, Settings

ENGINE_BYTES = {"cpu": 300 * 2**20, "cuda": 400 * 2**20}
"""Memory of a model's processes besides what the plan counts, by device.

Measured as private memory (`Private_*` in /proc/PID/smaps_rollup) once prompts had filled the KV cache, and a JSON
answer and images had been computed. Beyond weights and cache an engine holds 60 MiB with the steps of the embedded
model, which its plan counts as 266 MiB. The process that follows grammars holds up to 82 MiB, the one that decodes
images 12 MiB, and the zygote of all models 160 MiB with what engines share. For each of two models this is 234 MiB; the
rest is margin. On a GPU, where a context of CUDA is part of it, nothing was measured.
"""
LEAST_CACHE = 0.25
"""The part of its share of the memory for KV caches that a model keeps. With less, models take turns instead."""


@dataclass(frozen=True, slots=True)
class Need:
    """The bytes that a model takes once it is loaded, and those of its KV cache among them."""

    n_bytes: int
    cache: int


def device_of(flag: str) -> tuple[str, int | None]:
    """Return the device to plan for, and its memory in bytes: all of a GPU, what is free for a CPU (None: unknown)."""
    if flag != "cpu":
        gpu = gpu_memory()
        if gpu is not None or flag == "cuda" or is_divided():
            return "cuda", gpu
    return "cpu", free_memory()


def budget_of(settings: Settings) -> int:
    """Return the bytes that all models may take together. Raises OptionError if the machine does not tell them."""
    if settings.memory_budget is not None:
        return settings.memory_budget
    device, memory = device_of(settings.device)
    if memory is None:
        why = "MIG divides it" if is_divided() else "nvidia-smi does not tell it"
        raise OptionError(f"the memory of the GPU is not known ({why}): give several models a --memory-budget")
    share = BUDGET_SHARE if device == "cpu" else settings.gpu_memory_utilization or GPU_UTILIZATION
    return int(memory * share)


def need_of(settings: Settings, budget: int, n_models: int) -> Need:
    """Return the memory of a model that shares `budget` bytes with others.

    Worked example: two models share 16 GB, and this one needs 6 GB beside its KV cache. Alone its cache would get
    10 GB, of which half is 5 GB. With 2 GB two such models fit side by side, so it gets 2 GB. If 2 GB were less than
    `LEAST_CACHE` of 5 GB, it would get 5 GB. Raises NoriaError: MemoryLack for a model that does not fit alone.
    """
    directory = resolve(settings.model, revision=settings.revision, weights=False)
    device, _ = device_of(settings.device)
    options = replace(RunnerOptions(**runner_options(settings, directory, weights=False)), device=device)
    plan = make_plan(directory, options, budget - ENGINE_BYTES[device])
    if reason := lack(plan, options):
        raise MemoryLack(f"{settings.names[0]} does not fit into --memory-budget {budget}: {reason}")
    adapters = plan.adapter * plan.adapters if settings.lora or settings.lora_dir else 0
    fixed = ENGINE_BYTES[device] + plan.taken + plan.step + plan.graphs + adapters
    share, beside = (plan.cache or 0) // n_models, budget // n_models - fixed
    cache = options.cache_memory or (beside if LEAST_CACHE * share <= beside < share else share)
    return Need(fixed + cache, cache)
