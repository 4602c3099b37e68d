"""`noria prefixes`: what is in a directory of --prefix-store, and its removal."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from model.errors import OptionError, counted, size
from model.options import option, same
from service.commands.flags import takes
from service.engine.prefixes.files import folders, locked, page_files
from service.settings import Settings


@dataclass(frozen=True, slots=True)
class PrefixesOptions:
    """The options of `noria prefixes`."""

    action: str = option(
        "list",
        "list shows the pages by model; clear removes them all.",
        choices=("list", "clear"),
        is_argument=True,
        is_typed=True,
    )
    prefix_store: str | None = same(Settings, "prefix_store")
    json: bool = option(False, "Print JSON.")
    yes: bool = option(False, "Remove without a question.", is_typed=True)


@dataclass(frozen=True, slots=True)
class PrefixRow:
    """The pages of one fingerprint. `used` is the time of the last use."""

    fingerprint: str
    about: str
    pages: int
    bytes: int
    used: str


@takes(PrefixesOptions)
def prefixes(options: PrefixesOptions) -> None:
    """List or clear the pages of --prefix-store, which servers keep on disk.

    A running server goes on after a clear: it computes prompts anew, and saves new pages.
    """
    if options.prefix_store is None:
        raise OptionError("noria prefixes needs --prefix-store DIR (NORIA_PREFIX_STORE)")
    if (options.yes and options.action == "list") or (options.json and options.action == "clear"):
        raise OptionError("--yes is for noria prefixes clear, and --json for noria prefixes list")
    directory = Path(options.prefix_store)
    try:
        rows = [row for folder in folders(directory) if (row := _row(folder)) is not None]
        if options.action == "clear":
            _clear(directory, rows, options.yes)
        elif options.json:
            print(json.dumps([asdict(row) for row in rows], indent=1))
        else:
            Console(highlight=False).print(_table(rows))
    except OSError as error:
        raise OptionError(f"--prefix-store {directory}: {error.strerror or error}") from error


def _row(folder: Path) -> PrefixRow | None:
    """Return the row of a folder; None for one without pages."""
    found = [*page_files(folder)]
    if not found:
        return None
    about = ""
    with suppress(OSError, UnicodeDecodeError):
        about = (folder / "about").read_text()
    used = datetime.fromtimestamp(max(file.used for file in found) // 10**9, UTC)
    return PrefixRow(folder.name, about, len(found), sum(file.n_bytes for file in found), used.isoformat())


def _clear(directory: Path, rows: list[PrefixRow], yes: bool) -> None:
    n_pages, freed = sum(row.pages for row in rows), size(sum(row.bytes for row in rows))
    if not yes:
        typer.confirm(f"Remove {counted(n_pages, 'page')} and free {freed}?", abort=True)
    with locked(directory):
        for folder in folders(directory):
            for file in page_files(folder):
                Path(file.path).unlink(missing_ok=True)
            (folder / "about").unlink(missing_ok=True)
            with suppress(OSError):  # files that are not ours
                folder.rmdir()
    typer.echo(f"removed {counted(n_pages, 'page')}: {freed} are free again")


def _table(rows: list[PrefixRow]) -> Table:
    table = Table("model", "pages", "disk", "last used (UTC)", "fingerprint")
    for column in table.columns[1:3]:
        column.justify = "right"
    for row in rows:
        used = row.used[:16].replace("T", " ")
        table.add_row(escape(row.about), f"{row.pages:,}", size(row.bytes), used, row.fingerprint[:8])
    return table
