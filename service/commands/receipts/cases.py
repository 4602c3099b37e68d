"""The answers that `noria verify` checks: one in a file, or those of a batch, one a line."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import typer

from model.errors import OptionError
from service.commands.batch.lines import raw_lines
from service.commands.batch.results import is_failure, is_result
from service.commands.endpoint import error_message
from service.receipts.compare import Difference
from service.receipts.receipt import Receipt


@dataclass(slots=True)
class Case:
    """An answer, the body of its request if it is computed again, and what was found: differences, or an error.

    `name` is the custom_id of an answer of a batch. `texts` are those of the choices around the receipts.
    """

    place: str
    answer: Any
    name: str = ""
    receipts: list[Receipt] = field(default_factory=list)
    texts: list[str | None] = field(default_factory=list)
    body: Mapping[str, Any] | None = None
    found: list[Difference] = field(default_factory=list)
    promised: bool = True
    error: str = ""
    seconds: float = 0.0

    @property
    def problem(self) -> str:
        """Return the error, or all differences; empty if there is nothing wrong."""
        return self.error or "; ".join(item.text for item in self.found)

    def tell(self, *lines: str) -> None:
        """Print lines about an answer that is alone in its file. A batch prints its problems at the end."""
        if lines and not self.name:
            typer.echo("\n".join(lines))

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Measure the time of a check, and keep its error."""
        started = time.perf_counter()
        try:
            yield
        except OptionError as error:
            self.error = str(error)
        self.seconds += time.perf_counter() - started


def read_cases(path: Path) -> list[Case]:
    """Read the answers of a file: those of a batch have names. Raises OptionError."""
    _, first = next(raw_lines(path), (0, b""))
    if not is_result(_json(first)):
        return [Case(str(path), read_json(path))]
    return [_case(path, number, _json(text)) for number, text in raw_lines(path)]


def _case(path: Path, number: int, result: Any) -> Case:
    place = f"{path} line {number}"
    if not is_result(result):
        raise OptionError(f"{place} is no result of a batch")
    name = result["custom_id"] or f"line {number}"
    if is_failure(result):
        problem = error_message(result["error"] or result["response"]["body"])
        return Case(place, None, name, error=f"the batch has no answer: {problem}")
    return Case(place, result["response"]["body"], name)


def _json(text: bytes) -> Any:
    try:
        return orjson.loads(text)
    except ValueError:
        return None


def read_json(path: Path) -> Any:
    """Read the JSON in a file. Raises OptionError."""
    try:
        return from_json(path.read_bytes(), str(path))
    except OSError as error:
        raise OptionError(f"{path} cannot be read: {error.strerror}") from error


def from_json(text: bytes | str, place: str) -> Any:
    """Read the JSON in a text. Raises OptionError."""
    try:
        return orjson.loads(text)
    except ValueError as error:
        raise OptionError(f"{place} is not JSON: {error}") from None
