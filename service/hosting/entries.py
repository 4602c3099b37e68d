"""The models that a server has: one by its flags, several by its arguments, or those of a TOML file."""

import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_origin

from model.checkpoint.resolve import EMBEDDED
from model.errors import OptionError, one_line, short
from model.options import Flag, flag_name, flags, read_size
from service.hosting.durations import parse_duration
from service.model_settings import ModelSettings, read_text
from service.settings import Settings

LOADS = ("start", "first-request")
OWN = ("name", "source", "aliases", "pin", "load", "idle_unload", "ttl")
"""Fields of an entry that are no flags. `ttl` is another name of `idle_unload`."""
KINDS = {
    tuple: "a list of texts",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    Path: "a path",
    str: "a text",
}
"""The words for values of flags, by their types."""


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model: the settings of the server, with its own in place of those of the command line.

    `pinned`: no other model takes its memory. `on_demand`: requests wait until it is loaded, as they do where there are
    several; a server with one model refuses them meanwhile. `at_start`: it is loaded before a request names it.
    `idle_seconds`: it is unloaded this long after its last request; None: never.
    """

    settings: Settings
    pinned: bool = True
    on_demand: bool = False
    at_start: bool = True
    idle_seconds: float | None = None

    @property
    def name(self) -> str:
        return self.settings.names[0]

    @property
    def of_engine(self) -> Settings:
        """Return the settings without aliases. An entry with the same ones needs no other engine."""
        return replace(self.settings, served_model_name=self.settings.names[:1])


def read_entries(settings: Settings) -> tuple[ModelEntry, ...]:
    """Return the models of a server. A request that names none means the first. Raises OptionError."""
    if settings.models is None and not settings.more_models:
        if settings.memory_budget is not None or settings.load_timeout is not None:
            flag = "--load-timeout" if settings.memory_budget is None else "--memory-budget"
            raise OptionError(f"{flag} needs several models: name more of them, or a file with --models")
        return (ModelEntry(settings),)
    _check_several(settings)
    if settings.models is None:
        sources = (settings.model, *settings.more_models)
        found = [ModelEntry(replace(settings, model=source), False, True) for source in sources]
        for entry in found:
            entry.settings.check()
        _check_names(found, "", "argument")
    else:
        found = list(_read(settings.models, settings))
        _check_names(found, f"--models {settings.models}: ", "entry")
    return tuple(found)


def _check_several(settings: Settings) -> None:
    """Raise OptionError for flags that one model may have, but not several at once."""
    if settings.models is not None and (settings.more_models or settings.model != EMBEDDED):
        raise model_beside_file(settings.models)
    for flag, value in (
        ("--served-model-name", settings.served_model_name),
        ("--lora", settings.lora),
        ("--revision", settings.revision),
        ("--chat-template", settings.chat_template),
    ):
        if value:
            raise OptionError(
                f"{flag} belongs to one model, and the server has several: set it in the file of --models"
            )


def model_beside_file(path: Path) -> OptionError:
    """Return the error of a command line with an argument MODEL beside `--models`."""
    return OptionError(f"--models {path} names all models: leave out the argument MODEL (NORIA_MODEL)")


def _read(path: Path, settings: Settings) -> Iterator[ModelEntry]:
    try:
        table = tomllib.loads(read_text("--models", path))
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"--models {path}: not valid TOML: {one_line(error)}") from error
    entries = table.get("models")
    if table.keys() - {"models"} or not isinstance(entries, list) or not entries:
        raise OptionError(f"--models {path}: expected entries that begin with [[models]], and nothing beside them")
    for number, fields in enumerate(entries, start=1):
        name = fields.get("name") if isinstance(fields, dict) else None
        where = f"--models {path}: model {short(name) if isinstance(name, str) else number}"
        try:
            entry = _entry(fields, settings)
            entry.settings.check()
        except (ValueError, OptionError) as error:
            raise OptionError(f"{where}: {error}") from error
        yield entry


def _entry(fields: Any, settings: Settings) -> ModelEntry:
    """Read one entry. Raises ValueError or OptionError, with the name of the field."""
    if not isinstance(fields, dict):
        raise ValueError(f"expected fields, got {type(fields).__name__}")
    known = {flag_name(declared)[2:].replace("-", "_"): (declared, flag) for declared, flag in flags(ModelSettings)}
    given = {name.replace("-", "_"): value for name, value in fields.items()}
    if twice := next((name for name in fields if "-" in name and name.replace("-", "_") in fields), None):
        raise ValueError(f"{twice.replace('-', '_')} is given twice, with - and with _")
    names, source = _names(given)
    values = {}
    for name in given.keys() - OWN:
        declared, flag = _own(name, known)
        values[declared.name] = _value(name, declared, flag, given[name])
    pinned, load = given.get("pin", False), given.get("load", LOADS[0])
    if not isinstance(pinned, bool):
        raise ValueError(f"pin must be true or false, got {pinned!r}")
    if load not in LOADS:
        raise ValueError(f"load must be one of {', '.join(LOADS)}, got {load!r}")
    return ModelEntry(
        replace(settings, **values, model=source, served_model_name=names),
        pinned=pinned,
        on_demand=True,
        at_start=load == LOADS[0],
        idle_seconds=_idle(given),
    )


def _names(given: Mapping[str, Any]) -> tuple[tuple[str, ...], str]:
    """Return the names of a model, and its source. Without a name it has that of its source."""
    source, name, aliases = given.get("source"), given.get("name"), given.get("aliases", [])
    if not isinstance(source, str) or not source:
        raise ValueError(f"source must name a model, as the argument MODEL does, got {source!r}")
    if name is not None and (not isinstance(name, str) or not name.strip()):
        raise ValueError(f"name must be text that is not empty, got {name!r}")
    if not isinstance(aliases, list) or not all(isinstance(alias, str) and alias.strip() for alias in aliases):
        raise ValueError(f"aliases must be a list of names, got {aliases!r}")
    if name is None and aliases:
        raise ValueError("aliases need a name beside them")
    return ((name, *aliases) if name else ()), source


def _own(name: str, known: Mapping[str, tuple[Field[Any], Flag]]) -> tuple[Field[Any], Flag]:
    """Return the declaration of a flag that a model may have. Raises ValueError."""
    if name in known and not known[name][1].is_argument and name != "served_model_name":
        return known[name]
    server = {flag_name(declared)[2:].replace("-", "_") for declared, _ in flags(Settings)}
    what = "is a flag of the server, not of one model" if name in server else "is no field of a model"
    raise ValueError(f"{short(name)} {what}")


def _value(name: str, declared: Field[Any], flag: Flag, value: Any) -> Any:
    """Return the value of a flag. Raises ValueError."""
    from pydantic import TypeAdapter, ValidationError  # slow to import, and few servers read this

    if flag.is_size and isinstance(value, str):
        try:
            return read_size(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    if flag.choices and value not in flag.choices:
        raise ValueError(f"{name} must be one of {', '.join(flag.choices)}, got {value!r}")
    try:
        kind: Any = declared.type
        return TypeAdapter[Any](kind).validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError as error:
        words = next(words for of, words in KINDS.items() if of in (get_origin(kind), kind, *get_args(kind)))
        raise ValueError(f"{name} must be {', '.join(filter(None, (words, flag.limits)))}, got {value!r}") from error


def _idle(given: Mapping[str, Any]) -> float | None:
    found = [name for name in ("idle_unload", "ttl") if name in given]
    if len(found) == 2:
        raise ValueError("idle_unload and ttl mean the same: give one of them")
    try:
        return parse_duration(given[found[0]]) if found else None
    except ValueError as error:
        raise ValueError(f"{found[0]} {error}") from error


def _check_names(entries: Iterable[ModelEntry], where: str, what: str) -> None:
    """Raise OptionError if two models, or a model and an adapter, have one name."""
    owners: dict[str, str] = {}
    for number, entry in enumerate(entries, start=1):
        owner = f"{what} {number} ({short(entry.settings.model)})"
        for name in (*entry.settings.names, *entry.settings.adapters_given):
            if name in owners:
                raise OptionError(
                    f"{where}the name {name!r} belongs to {owners[name]} and to {owner}: give each model and adapter a "
                    "name of its own in the file of --models"
                )
            owners[name] = owner
