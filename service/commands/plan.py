"""`noria plan`: the memory that a model needs, and how many sequences fit, without loading the model."""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace

from rich.console import Console
from rich.table import Table

from model.checkpoint.resolve import resolve
from model.machine.host import free_memory
from model.memory.plan import MemoryPlan, make_plan
from model.memory.sizes import size
from model.options import RunnerOptions
from service.generation.startup import runner_options
from service.settings import Settings


def show(settings: Settings, total: int | None, *, as_json: bool) -> None:
    """Print the memory plan for `settings`: for a GPU with `total` bytes of memory, unless their device is cpu.

    `total` None is unknown; for a CPU it is the free memory of this machine. Raises NoriaError.
    """
    settings = replace(settings, device="cpu" if settings.device == "cpu" else "cuda")
    settings.check()
    directory = resolve(settings.model, cache_dir=settings.cache_dir, revision=settings.revision, weights=False)
    if total is None and settings.device == "cpu":
        total = free_memory()
    made = make_plan(directory, RunnerOptions(**runner_options(settings, directory)), total)
    if as_json:
        print(json.dumps(asdict(made), indent=1))
        return
    console = Console(highlight=False, soft_wrap=True)
    for name, text in lines(made):
        console.print(f"{name:14}{text}", markup=False)
    console.print(table(made))


def lines(plan: MemoryPlan) -> Iterator[tuple[str, str]]:
    """The lines of the plan, each as its title and its text."""
    yield "weights", f"{size(plan.weights)}, {plan.parameters:,} in {plan.stored}"
    yield "a step", f"about {size(plan.step)}, {plan.step_tokens} tokens of {plan.step_sequences} sequences"
    yield "a token", f"{plan.token:,} bytes of keys and values in {plan.kv_dtype}"
    for pool in plan.pools:
        within = "with full attention" if pool.window is None else f"with a window of {pool.window:,}"
        pages = "" if pool.n_pages is None else f", {pool.n_pages:,} pages of {plan.page_size} tokens"
        yield "", f"{pool.token_bytes:,} in {pool.layers} layers {within}{pages}"
    if plan.cache is None:
        yield "memory", "unknown; give --memory 80GiB to see what fits"
    else:
        yield "cache", f"{size(plan.cache)} of {size(plan.memory or 0)}"
        if plan.served != plan.context:
            yield "longest", f"{plan.served:,} of {plan.context:,} tokens fit"


def table(plan: MemoryPlan) -> Table:
    made = Table("tokens", "a sequence takes", "sequences that fit")
    for column in made.columns:
        column.justify = "right"
    for fit in plan.fits:
        made.add_row(f"{fit.tokens:,}", size(fit.n_bytes), "?" if fit.sequences is None else f"{fit.sequences:,}")
    return made
