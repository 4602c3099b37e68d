"""`--help`: flags in panels, each above its explanation, so that 80 columns are enough."""

import io
import shutil
import sys
from typing import Any, TypeVar

from typer.core import TyperCommand, TyperGroup

T = TypeVar("T")

MAX_COLUMNS = 100
INDENT = 4
HELP = {"help_option_names": ["-h", "--help"]}
"""Settings of a command's context."""


class PanelCommand(TyperCommand):
    """A command whose help has its flags in panels."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _begin(self, ctx, formatter)
        formatter.write(_panels(_by_panel(self.get_params(ctx), "Options"), ctx))


class PanelGroup(TyperGroup):
    """The root command: its help has its commands in panels, then its own flags."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        _begin(self, ctx, formatter)
        commands = _by_panel([self.commands[name] for name in self.list_commands(ctx)], "Commands")
        formatter.write(_panels(commands | _by_panel(self.get_params(ctx), "Options"), ctx))


def _width() -> int:
    return min(shutil.get_terminal_size().columns, MAX_COLUMNS)


def _begin(command: Any, ctx: Any, formatter: Any) -> None:
    formatter.width = min(formatter.width, _width() - 2)  # its own least width is 50
    command.format_usage(ctx, formatter)
    command.format_help_text(ctx, formatter)
    formatter.write("\n")


def _by_panel(items: list[T], default: str) -> dict[str, list[T]]:
    """Commands, or flags, by the panel that each names."""
    panels: dict[str, list[T]] = {}
    for item in items:
        panels.setdefault(getattr(item, "rich_help_panel", None) or default, []).append(item)
    return panels


def _panels(panels: dict[str, list[Any]], ctx: Any) -> str:
    """Each panel in a box with its name. In colour on a terminal only, and not if NO_COLOR is set."""
    from rich.console import Console, Group
    from rich.panel import Panel

    out = io.StringIO()
    console = Console(file=out, width=_width(), force_terminal=sys.stdout.isatty(), highlight=False)
    for name, items in panels.items():
        content = [
            _command(item) if isinstance(item, TyperCommand) else _flag(item.get_help_record(ctx)) for item in items
        ]
        console.print(Panel(Group(*content), title=name, title_align="left"))
    return out.getvalue()


def _command(command: TyperCommand) -> Any:
    from rich.table import Table
    from rich.text import Text

    line = Table.grid(padding=(0, 2))
    line.add_column(width=8, style="bold cyan")
    line.add_row(command.name, Text(command.get_short_help_str(200)))
    return line


def _flag(record: tuple[str, str]) -> Any:
    """A flag with the type of its value, and below it what it means; its variable, default and range are dim."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.text import Text

    name, text = record
    about, bracket, facts = text.rpartition("  [")
    means = Text.assemble(about, (bracket[1:] + facts, "dim")) if bracket else Text(text)
    return Group(Text(name, style="bold cyan"), Padding(means, (0, 0, 0, INDENT)))
