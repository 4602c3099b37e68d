"""The memory of models by their plans, before anything is read."""

from dataclasses import dataclass, replace

from model.checkpoint.resolve import resolve
from model.errors import MemoryLack
from model.machine.gpu import gpu_memory
from model.machine.host import free_memory
from model.memory.plan import make_plan
from model.memory.remedies import lack
from model.options import GPU_UTILIZATION, RunnerOptions
from service.generation.startup import runner_options
from service.settings import BUDGET_SHARE, Settings

ENGINE_BYTES = 400 * 2**20
"""Memory of an engine process and its spare, besides what the plan counts."""


@dataclass(frozen=True, slots=True)
class Need:
    """The bytes that a model takes once it is loaded, and those of its KV cache among them."""

    n_bytes: int
    cache: int


def budget_of(settings: Settings) -> int:
    """The bytes that all models may take together. Raises OptionError if the machine does not say what it has."""
    if settings.memory_budget is not None:
        return settings.memory_budget
    if settings.device != "cpu" and (gpu := gpu_memory()) is not None:
        return int(gpu * (settings.gpu_memory_utilization or GPU_UTILIZATION))
    return int(free_memory() * BUDGET_SHARE)


def need_of(settings: Settings, budget: int, n_models: int) -> Need:
    """The memory of a model that shares `budget` bytes with others. Raises NoriaError.

    One that cannot fit alone is a MemoryLack.
    A KV cache without a given size takes its part of what a server with this model alone would give it.
    """
    device = "cuda" if settings.device != "cpu" and gpu_memory() is not None else "cpu"
    directory = resolve(settings.model, revision=settings.revision, weights=False)
    options = replace(RunnerOptions(**runner_options(settings, directory)), device=device)
    plan = make_plan(directory, options, budget - ENGINE_BYTES)
    if reason := lack(plan, options):
        raise MemoryLack(f"{settings.names[0]} does not fit into --memory-budget {budget}: {reason}")
    cache = options.cache_memory or (plan.cache or 0) // n_models
    adapters = plan.adapter * plan.adapters if settings.lora or settings.lora_dir else 0
    return Need(ENGINE_BYTES + plan.taken + plan.step + plan.graphs + adapters + cache, cache)
