"""`noria plan`: the memory that a model needs, and how many sequences fit, without loading the model."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace

import typer
from rich.console import Console
from rich.table import Table

from model.checkpoint.resolve import resolve
from model.errors import OptionError
from model.machine.gpu import driver
from model.memory.plan import MemoryPlan, make_plan
from model.memory.remedies import lack, remedies
from model.memory.sizes import ADAPTER_RANK, size
from model.options import RunnerOptions
from service.commands.flags import parse_size
from service.generation.startup import runner_options
from service.hosting.memory import device_of
from service.settings import Settings

LEAST_BARE = 2**20
"""The least number of bytes that needs no unit. 12 is no amount of memory that a user means."""


def parse_memory(text: str) -> int:
    """Read bytes as `parse_size` does; a number without a unit must be at least 1 MiB."""
    if re.fullmatch(r"\d+(\.\d+)?", text.strip()) and parse_size(text) < LEAST_BARE:
        raise typer.BadParameter(f"{text} without a unit is {text} bytes; write {text}GiB or {text}MiB")
    return parse_size(text)


def show(settings: Settings, total: int | None, *, as_json: bool) -> None:
    """Print the memory plan for `settings`, on a device with `total` bytes of memory.

    Without a device it is this machine's, and without `total` its memory. Raises NoriaError, also if nothing fits.
    """
    device, own = device_of(settings.device)
    settings = replace(settings, device=device)
    settings.check()
    directory = resolve(settings.model, revision=settings.revision, weights=False)
    options = RunnerOptions(**runner_options(settings, directory, weights=False))
    made = make_plan(directory, options, own if total is None else total)
    reason = lack(made, options)
    ways = list(remedies(directory, options, made)) if reason else []
    if as_json:
        about = {**asdict(made), "waiting_media": settings.max_queue_media if made.encoder else 0}
        print(json.dumps({"device": device, **about, "possible": not reason, "remedies": ways}, indent=1))
    else:
        _print(made, f"{device}{_whose(device) if total is None and own else ''}", settings.max_queue_media)
    if reason:
        raise OptionError(f"nothing fits: {reason}; enough would be {', or '.join(ways)}")


def _whose(device: str) -> str:
    found = driver() if device == "cuda" else None
    return f" of this machine{f' with driver {found}' if found else ''}"


def _print(plan: MemoryPlan, device: str, waiting_media: int) -> None:
    console = Console(highlight=False, soft_wrap=True)
    for name, text in lines(plan, device, waiting_media):
        console.print(f"{name:14}{text}", markup=False)
    if len(plan.ranks) > 1:
        console.print(ranks(plan))
    console.print(table(plan))


def lines(plan: MemoryPlan, device: str, waiting_media: int) -> Iterator[tuple[str, str]]:
    """Yield the lines of the plan, each as its title and its text. `waiting_media` is --max-queue-media."""
    memory = "memory unknown; give --memory 80GiB to see what fits" if plan.memory is None else size(plan.memory)
    in_group = len(plan.ranks) > 1
    yield "device", f"{device}, {memory}{' for each rank' if in_group and plan.memory is not None else ''}"
    if in_group:
        yield "layout", f"{plan.layout}, {len(plan.ranks)} ranks; the sizes below are of the rank that needs most"
    part = "its part of " if in_group else ""
    yield "weights", f"{size(plan.weights)}, {part}{plan.parameters:,} in {plan.stored}"
    yield "", f"about {size(plan.read)} of them are read for one token"
    if plan.checkpoint:
        yield "checkpoint", f"{plan.checkpoint}; served as {plan.stored}"
    if plan.encoder:
        one = {"images": "image", "audio": "audio"}[plan.encodes]
        yield plan.encodes, f"{size(plan.encoder)} of the weights are the {one} encoder"
        what = "one image" if one == "image" else "a chunk of audio"
        yield "", f"{size(plan.media)} for {plan.media_tokens:,} tokens of embeddings and the encoding of {what}"
        yield "", f"{size(waiting_media)} of the host's memory for decoded {plan.encodes} of requests that wait"
    yield "a step", f"about {size(plan.step)}, {plan.step_tokens} tokens of {plan.step_sequences} sequences"
    if plan.graphs:
        yield "CUDA graphs", f"about {size(plan.graphs)}, of steps that only decode"
    yield "a token", f"{plan.token:,} bytes of keys and values in {plan.kv_dtype}"
    for pool in plan.pools:
        within = "with full attention" if pool.window is None else f"with a window of {pool.window:,}"
        pages = "" if pool.n_pages is None else f", {pool.n_pages:,} pages of {plan.page_size} tokens"
        yield "", f"{pool.token_bytes:,} in {pool.layers} layers {within}{pages}"
    if not in_group:  # ranks have no adapters
        yield "an adapter", f"{size(plan.adapter)} with LoRA of rank {ADAPTER_RANK}, {plan.adapters} may be in memory"
    if plan.cache is not None:
        yield "cache", size(plan.cache)
        if plan.served != plan.context:
            yield "longest", f"{plan.served:,} of {plan.context:,} tokens fit"


def ranks(plan: MemoryPlan) -> Table:
    made = _right("rank", "layers", "beside them", "weights", "a token", "cache")
    for rank in plan.ranks:
        beside = ", ".join(["embeddings"] * rank.embeddings + ["head"] * rank.head)
        layers = f"{rank.first_layer} to {rank.first_layer + rank.layers - 1}"
        cache = "?" if rank.cache is None else size(rank.cache)
        made.add_row(str(rank.rank), layers, beside, size(rank.weights), f"{rank.token:,}", cache)
    return made


def table(plan: MemoryPlan) -> Table:
    made = _right("tokens", "a sequence takes", "sequences that fit")
    for fit in plan.fits:
        made.add_row(f"{fit.tokens:,}", size(fit.n_bytes), "?" if fit.sequences is None else f"{fit.sequences:,}")
    return made


def _right(*titles: str) -> Table:
    """Return a table without rows, its columns aligned to the right."""
    made = Table(*titles)
    for column in made.columns:
        column.justify = "right"
    return made
