"""`noria`: the command line. Every flag of `serve` is also an environment variable NORIA_<FLAG>.

Imports here are few: `serve` starts the engine process before anything slow is imported.
"""

import sys
from typing import Annotated, NoReturn

import typer

from model.errors import NoriaError
from service.commands.flags import parse_size, takes
from service.commands.serve import run
from service.settings import Settings


@takes(Settings)
def serve(settings: Settings) -> None:
    """Serve MODEL over HTTP with the APIs of OpenAI and Anthropic."""
    raise typer.Exit(run(settings))


@takes(Settings, only_plan=True)
def plan(
    settings: Settings,
    memory: Annotated[
        int | None,
        typer.Option(
            help="Memory of the GPU, such as 80GiB.",
            parser=parse_size,
            metavar="SIZE",
            envvar="NORIA_MEMORY",
            show_default="unknown, with --device cpu the free memory",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", envvar="NORIA_JSON", help="Print JSON.")] = False,
) -> None:
    """Show how much memory MODEL needs and how many sequences fit.

    The model is not loaded. The plan is for a GPU unless --device is cpu: auto means cuda here.
    """
    from service.commands.plan import show

    show(settings, memory, as_json=json)


def _show_version(wanted: bool) -> None:
    if wanted:
        from service import version

        typer.echo(f"noria {version()}")
        raise typer.Exit


def build(arguments: list[str]) -> typer.Typer:
    """The application with its commands. `serve` gets no other command, because those import slow modules."""
    app = typer.Typer(name="noria", add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)

    @app.callback()
    def root(
        version: Annotated[
            bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
        ] = False,
    ) -> None:
        """Serve Mistral-family language models over HTTP."""

    app.command()(serve)
    if arguments[:1] != ["serve"]:
        from service.commands.batch.command import batch
        from service.commands.bench.command import bench
        from service.commands.chat import chat
        from service.commands.models.command import list_models, pull, rm

        app.command()(plan)
        app.command()(chat)
        app.command()(bench)
        app.command()(batch)
        app.command()(pull)
        app.command("list")(list_models)
        app.command()(rm)
    return app


def main() -> None:
    """Entry point. An error that a user can cause is one line on stderr; exit code 2 for the command line, else 1."""
    arguments = sys.argv[1:] or ["--help"]
    try:
        raise SystemExit(build(arguments)(arguments, standalone_mode=False))
    except typer.TyperException as error:
        _fail(f"{error.format_message()} (noria --help lists the commands, noria COMMAND --help their flags)", 2)
    except NoriaError as error:
        _fail(str(error), 1)
    except typer.Abort:
        raise SystemExit(130) from None


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"noria: {message}", err=True)
    raise SystemExit(code)
