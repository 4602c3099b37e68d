"""`noria`: the command line. Every flag of `serve` is also an environment variable NORIA_<FLAG>.

Imports here are few: `serve` should listen soon.
"""

import os
import sys
from collections.abc import Callable
from itertools import chain
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from model.errors import NoriaError
from service.commands.flags import refusal, takes
from service.commands.serve import run
from service.commands.variables import OF_COMMANDS, PLAN_JSON, PLAN_MEMORY, drop_links, unread
from service.hosting.entries import model_beside_file
from service.settings import Settings

if TYPE_CHECKING:
    from service.engine.supervision.launch import Launched

HELP = {"help_option_names": ["-h", "--help"]}
"""Settings of a command's context."""
ANYTHING = {"ignore_unknown_options": True, "allow_extra_args": True}


def _memory(text: str) -> int:
    from service.commands.plan import parse_memory

    return parse_memory(text)


@takes(Settings, only_plan=True)
def plan(
    settings: Settings,
    memory: Annotated[
        int | None,
        typer.Option(
            help="Memory of the device, such as 80GiB.",
            parser=_memory,
            metavar="SIZE",
            envvar=PLAN_MEMORY,
            show_default="of a GPU all, of a CPU what is free now",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", envvar=PLAN_JSON, help="Print JSON.")] = False,
) -> None:
    """Show how much memory MODEL needs and how many sequences fit.

    The model is not loaded. The plan is for the GPU of this machine, or for its CPU if it has none. --device and
    --memory plan for another machine. The exit code is 1 if nothing fits; then the command says what would.
    """
    from service.commands.plan import show

    show(settings, memory, as_json=json)


def _show_version(given: bool) -> None:
    if given:
        from service import version

        typer.echo(f"noria {version()}")
        raise typer.Exit


def _check() -> NoReturn:
    """Say where `noria check` went."""
    raise typer.TyperException(
        'noria check is gone: noria batch REQUESTS GOLDEN records answers, if each body has "receipt": "full"; '
        "noria verify GOLDEN --answers-only computes them again"
    )


def build(arguments: list[str], zygote: "Launched | None" = None) -> typer.Typer:
    """Build the application with its commands. `serve` gets no other command, because those import slow modules.

    It uses `zygote`, a process that is started already.
    """
    # Without `rich_markup_mode`, help is complete at 80 columns: boxes would cut the names of flags and variables.
    app = typer.Typer(name="noria", context_settings=HELP, pretty_exceptions_enable=False, rich_markup_mode=None)

    def add(command: Callable[..., None], name: str | None = None) -> None:
        app.command(name, context_settings=HELP)(command)

    @app.callback()
    def root(
        context: typer.Context,
        version: Annotated[
            bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
        ] = False,
    ) -> None:
        """Serve Mistral-family language models over HTTP.

        Without MODEL, a small model that is installed with Noria is used.
        """
        if not {"-h", "--help"} & {*arguments}:
            _check_variables(context.command)

    @takes(Settings)
    def serve(settings: Settings, context: typer.Context) -> None:
        """Serve MODEL over HTTP with the APIs of OpenAI, Anthropic, Mistral and Ollama."""
        source = context.get_parameter_source("model")
        if settings.models is not None and source is not None and source.name != "DEFAULT":
            raise model_beside_file(settings.models)  # also for the default, which the settings do not tell from this
        raise typer.Exit(run(settings, zygote))

    add(serve)
    if arguments[:1] != ["serve"]:
        from service.commands.batch.command import batch
        from service.commands.bench.command import bench
        from service.commands.chat.command import chat
        from service.commands.explain import explain_server
        from service.commands.models.command import list_models, pull, rm
        from service.commands.prefixes import prefixes
        from service.commands.ps import ps
        from service.commands.receipts.key import receipts
        from service.commands.receipts.verify import verify

        for command in (plan, chat, ps, batch, bench, pull):
            add(command)
        add(list_models, "list")
        add(explain_server, "explain")
        for command in (rm, prefixes, verify):
            add(command)
        app.add_typer(receipts, name="receipts", context_settings=HELP)
        app.command("check", hidden=True, add_help_option=False, context_settings=ANYTHING)(_check)
    return app


def _check_variables(group: Any) -> None:
    """Name the variables NORIA_* that no command reads. Raises OptionError for one that looks like a key."""
    known = {flag.envvar for command in group.commands.values() for flag in command.params if flag.envvar}
    elsewhere = () if "chat" in group.commands else OF_COMMANDS
    for line in chain(drop_links(os.environ, known), unread(os.environ, known, elsewhere)):
        typer.echo(f"noria: {line}", err=True)


def main(zygote: "Launched | None" = None) -> None:
    """Run a command. An error that a user can cause is one line on stderr; exit code 2 for the command line, else 1.

    `zygote` is a process that is started already, for `serve`.
    """
    arguments = sys.argv[1:] or ["--help"]
    try:
        raise SystemExit(build(arguments, zygote)(arguments, standalone_mode=False, prog_name="noria"))
    except typer.TyperException as error:
        told = refusal(error) if isinstance(error, typer.BadParameter) else error.format_message()
        _fail(f"{told} (noria --help lists the commands, noria COMMAND --help their flags)", 2)
    except NoriaError as error:
        _fail(str(error), 1)
    except (typer.Abort, KeyboardInterrupt):
        raise SystemExit(130) from None


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"noria: {message}", err=True)
    raise SystemExit(code)
