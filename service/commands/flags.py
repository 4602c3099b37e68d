"""Declared options as flags of a command, as environment variables, and as the table of docs/configuration.md.

`python -m service.commands.flags` writes the table there.
"""

import functools
import inspect
import re
from collections.abc import Callable
from dataclasses import Field
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_origin

import typer

from model.options import UNITS, Flag, flag_name, grouped_flags, read_size

Options = TypeVar("Options")

PREFIX = "NORIA_"
KINDS = {"a whole number": re.compile("int_"), "true or false": re.compile("bool_"), "a number": re.compile("")}
"""The words for values, by pydantic's types of faults."""
DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"
START, END = "<!-- flags: python -m service.commands.flags -->", "<!-- end of flags -->"


def parse_size(text: str) -> int:
    """Read bytes from the command line, as `read_size` does."""
    try:
        return read_size(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None


def refusal(error: typer.BadParameter) -> str:
    """Return the fault of a value: "--port (NORIA_PORT) must be a whole number, at most 65535, got 'abc'".

    Typer checks numbers and choices with pydantic, whose own words leave out the value.
    """
    from pydantic import ValidationError

    param: Any = error.param
    if param is None or not isinstance(error.__cause__, ValidationError):
        return error.format_message()
    name = param.opts[-1] + (f" ({param.envvar})" if param.envvar else "")
    (fault, *_) = error.__cause__.errors()
    if fault["type"] == "value_error":  # a choice: it has value and choices
        return f"{name}: {fault['ctx']['error']}"
    kind = next(word for word, types in KINDS.items() if types.match(fault["type"]))
    limits = Flag("", least=getattr(param, "min", None), most=getattr(param, "max", None)).limits
    return f"{name} must be {', '.join(filter(None, (kind, limits)))}, got {fault['input']!r}"


def takes(
    options: type[Options], prefix: str = PREFIX, *, only_plan: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command that gets an instance of `options` first: their flags become its parameters.

    Each flag can also be set by the environment variable of its name after `prefix`.
    """
    declared = {
        field.name: _parameter(field, flag, prefix)
        for _, field, flag in grouped_flags(options)
        if flag.in_plan or not only_plan
    }

    def decorate(run: Callable[..., None]) -> Callable[..., None]:
        _, *own = inspect.signature(run).parameters.values()

        @functools.wraps(run)
        def command(**values: Any) -> None:
            chosen = {name: values.pop(name) for name in declared}
            run(options(**{name: tuple(v) if isinstance(v, list) else v for name, v in chosen.items()}), **values)

        command.__signature__ = inspect.Signature([*own, *declared.values()])  # type: ignore[attr-defined]
        return command

    return decorate


def variable(field: Field[Any], prefix: str = PREFIX) -> str:
    """Return the environment variable of a field: NORIA_MAX_MODEL_LEN of `max_model_len`."""
    return prefix + flag_name(field).removeprefix("--").replace("-", "_").upper()


def _parameter(field: Field[Any], flag: Flag, prefix: str) -> inspect.Parameter:
    """Return the parameter of a command, as Typer reads it."""
    about: dict[str, Any] = {
        "help": flag.help,
        "envvar": None if flag.is_typed else variable(field, prefix),
        "show_envvar": True,
    }
    kind: Any = field.type
    default: Any = field.default
    if flag.unset:
        about["show_default"] = flag.unset
    if flag.is_size:
        about |= {"parser": parse_size, "metavar": "SIZE"}
        default = default and _size(default)
    elif flag.above is not None:
        # Typer has no exclusive limits: `check_limits` refuses the value.
        about |= {"max": flag.most, "metavar": f"{flag.above}<x<={flag.most}"}
    elif flag.limits:
        about |= {"min": flag.least, "max": flag.most}
    if flag.choices:
        kind = Literal[flag.choices]
    elif get_origin(kind) is tuple:
        kind, default = list[str], list(default)
    name = flag_name(field)
    switch = f"{name}/--no-{name[2:]}" if kind is bool else name
    if flag.is_argument:
        about["metavar"] = field.name.upper()  # as the texts of the commands name it
    made = typer.Argument(**about) if flag.is_argument else typer.Option(switch, **about)
    return inspect.Parameter(
        field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, made]
    )


def _size(n_bytes: int) -> str:
    """Return the shortest text that `parse_size` reads as `n_bytes`: "8MiB"."""
    unit = next(unit for unit in reversed(UNITS) if n_bytes % UNITS[unit] == 0)
    return f"{n_bytes // UNITS[unit]}{unit}iB" if unit else str(n_bytes)


def table(options: type) -> str:
    """Return the flags of `options` as Markdown: a heading and a table for each group."""
    rows: dict[str, list[str]] = {}
    for group, field, flag in grouped_flags(options):
        rows.setdefault(group, []).append(_row(field, flag))
    head = "| flag | variable | meaning | default | `plan` |\n" + "|---" * 5 + "|"
    return "\n\n".join(f"### {group}\n\n" + "\n".join([head, *lines]) for group, lines in rows.items())


def _row(field: Field[Any], flag: Flag) -> str:
    name = field.name.upper() if flag.is_argument else flag_name(field)
    choices = f" One of {', '.join(flag.choices)}." if flag.choices else ""
    limits = f" {flag.limits.capitalize()}." if flag.limits else ""
    source = "" if flag.is_typed else f"`{variable(field)}`"
    cells = (f"`{name}`", source, flag.help + choices + limits, _default(field.default, flag))
    return f"| {' | '.join(cells)} | {'yes' if flag.in_plan else ''} |"


def _default(default: Any, flag: Flag) -> str:
    if default in (None, ()):
        return flag.unset or "none"
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"`{_size(default) if flag.is_size else default}`"


def document(text: str, options: type) -> str:
    """Return `text` with today's table between its marks. Raises ValueError without marks."""
    before, after = text[: text.index(START)], text[text.index(END) :]
    return f"{before}{START}\n\n{table(options)}\n\n{after}"


if __name__ == "__main__":
    from service.settings import Settings

    DOCUMENT.write_text(document(DOCUMENT.read_text(), Settings))
