"""The cost of a step, as a file has it: `python -m benchmarks.costs` writes such files."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from model.batch import PoolSpec, RunnerInfo
from model.errors import OptionError


class Line(NamedTuple):
    """Seconds of a step, of each of its tokens and sequences, and of the keys that its tokens attend to.

    `key` counts the keys that a sequence's last token sees, `pair` those that all of its tokens see. Both are means
    over the page pools.
    """

    step: float = 0.0
    token: float = 0.0
    sequence: float = 0.0
    key: float = 0.0
    pair: float = 0.0

    def seconds(self, tokens: float, sequences: float, keys: float, pairs: float) -> float:
        return self.step + self.token * tokens + self.sequence * sequences + self.key * keys + self.pair * pairs


@dataclass(frozen=True, slots=True)
class Costs:
    """What a machine needs for a model: a step takes as long as the greatest of `lines` says.

    `request` is the time in seconds that a request spends outside of steps before its first token: HTTP, tokenizer, and
    the way back. `engine` has the limits and page pools of the engine that was measured. `about` is for people.
    """

    about: dict[str, Any]
    lines: tuple[Line, ...]
    request: float
    engine: RunnerInfo

    def seconds(self, tokens: int, sequences: int, keys: float, pairs: float) -> float:
        """Seconds of a step."""
        return max([line.seconds(tokens, sequences, keys, pairs) for line in self.lines])


ENGINE = ("page_size", "max_model_len", "max_sequences", "max_step_tokens")
TARGET = "target_inter_token"


def engine(pools: Iterable[PoolSpec], **limits: Any) -> RunnerInfo:
    """The facts of a runner that a scheduler reads."""
    return RunnerInfo(pools=tuple(pools), vocab_size=0, dim=0, description={}, **limits)


def to_json(costs: Costs) -> dict[str, Any]:
    pools = [{"window": pool.window, "pages": pool.n_pages} for pool in costs.engine.pools]
    limits = {name: getattr(costs.engine, name) for name in (*ENGINE, TARGET)}
    return {
        "about": costs.about,
        "lines": [line._asdict() for line in costs.lines],
        "request": costs.request,
        "engine": limits | {"pools": pools},
    }


def read(path: Path) -> Costs:
    """The costs of a file. Raises OptionError that names the file, the field and the value."""
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise OptionError(f"--costs {path} cannot be read: {error.strerror}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise OptionError(
            f"--costs {path} is not JSON: {error}; python -m benchmarks.costs writes such files"
        ) from error
    except ValueError as error:
        raise OptionError(f"--costs {path}: {error}") from error


def parse(found: Any) -> Costs:
    """Costs from JSON. Raises ValueError that names the field and the value."""
    _names("the file", found, ("about", "lines", "request", "engine"))
    about, limits = found["about"], found["engine"]
    if not isinstance(about, dict):
        raise ValueError(f"about must be an object, got {about!r}")
    _names("engine", limits, (*ENGINE, TARGET, "pools"))
    pools = [_pool(pool, f"engine.pools[{n}]") for n, pool in enumerate(_list(limits["pools"], "engine.pools"))]
    lines = [_line(line, f"lines[{n}]") for n, line in enumerate(_list(found["lines"], "lines"))]
    numbers = {name: _count(limits[name], f"engine.{name}") for name in ENGINE}
    target = {TARGET: _seconds(limits[TARGET], f"engine.{TARGET}")}
    return Costs(about, tuple(lines), _seconds(found["request"], "request"), engine(pools, **numbers, **target))


def _line(found: Any, where: str) -> Line:
    _names(where, found, Line._fields)
    line = Line(**{name: _seconds(found[name], f"{where}.{name}") for name in Line._fields})
    if line.step + line.token + line.sequence <= 0:
        raise ValueError(f"{where}: step, token and sequence are all 0, and a step must take time")
    return line


def _pool(found: Any, where: str) -> PoolSpec:
    _names(where, found, ("window", "pages"))
    window = None if found["window"] is None else _count(found["window"], f"{where}.window")
    return PoolSpec(window, _count(found["pages"], f"{where}.pages"))


def _names(where: str, found: Any, wanted: tuple[str, ...]) -> None:
    """Raise ValueError unless `found` is an object with these fields."""
    if not isinstance(found, dict) or found.keys() != set(wanted):
        has = sorted(found) if isinstance(found, dict) else type(found).__name__
        raise ValueError(f"{where} must have the fields {', '.join(wanted)}, found {has}")


def _list(found: Any, where: str) -> list[Any]:
    if not isinstance(found, list) or not found:
        raise ValueError(f"{where} must be a list with at least one entry, got {found!r}")
    return found


def _count(value: Any, where: str) -> int:
    if type(value) is not int or value < 1:
        raise ValueError(f"{where} must be an integer of at least 1, got {value!r}")
    return value


def _seconds(value: Any, where: str) -> float:
    if type(value) not in (int, float) or not 0 <= value < float("inf"):
        raise ValueError(f"{where} must be a number of seconds of at least 0, got {value!r}")
    return float(value)
