"""A row of the drill's table: a fault or an attack, the promise with its bounds, and what was seen."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx

if TYPE_CHECKING:
    from tests.drill.explained import Said
    from tests.drill.stage import Stage

UNEXPECTED = (OSError, ValueError, LookupError, AttributeError, AssertionError, RuntimeError, httpx.HTTPError)
"""What an action may raise when the server does not do what the action rests on."""
LIVE_SECONDS = 0.5
SERVES_SECONDS = 8.0
ANSWER_SECONDS = 20.0
MIB = 2**20
MEMORY = 64 * MIB


class Broken(Exception):
    """A promise does not hold. The message says what was seen."""


class NotPossible(Exception):
    """This machine cannot apply the fault. The message says what is missing."""


def check(holds: object, seen: str) -> None:
    """Raise Broken with what was `seen` unless the promise `holds`."""
    if not holds:
        raise Broken(seen)


@dataclass(frozen=True, slots=True)
class Promise:
    """The bounds of a row. `own` says what the row's action checks itself.

    serves: None for an attack: then each request of the canary is answered within `answers` seconds. A fault may fail
        requests, with a 5xx or a lost connection, and a request that begins after it is answered within `serves`.
    live: seconds of the slowest answer of `/live`; None while nothing can answer.
    memory: bytes by which the service process may grow meanwhile.
    refusals: statuses besides 200 that the canary may get.
    """

    own: str = ""
    serves: float | None = None
    answers: float = ANSWER_SECONDS
    live: float | None = LIVE_SECONDS
    memory: int = MEMORY
    refusals: frozenset[int] = frozenset()

    def __str__(self) -> str:
        parts = [self.own] if self.own else []
        parts.append("answers equal those given alone")
        parts.append(f"within {self.answers:g} s" if self.serves is None else f"serves again within {self.serves:g} s")
        if self.live is not None:
            parts.append(f"`/live` at most {1000 * self.live:g} ms")
        if self.memory != MEMORY:
            parts.append(f"the service grows by at most {self.memory // MIB} MiB")
        return "; ".join(parts)


@dataclass(frozen=True, slots=True)
class Row:
    """One fault on a running server. `action` applies it, checks `promise.own` (it raises Broken), returns what it saw.

    `setup` names the server (`target.SETUPS`). `askers` is how many canaries ask meanwhile: 1 is rest, 6 is load.
    Rows on the server "aside" run at the same time as all others, because they wait for long deadlines: only
    `promise.own` is checked there. `cause` is the name of the rule that `noria explain` must give, "nothing" where the
    row harms nothing; empty where it is not looked for.
    """

    fault: str
    promise: Promise
    action: Callable[["Stage"], str]
    setup: str = "main"
    askers: int = 1
    cause: str = ""

    def __str__(self) -> str:
        return self.promise.own if self.setup == "aside" else str(self.promise)


@dataclass(frozen=True, slots=True)
class LoneRow:
    """A fault for which `action` starts a server itself, because that does not come up or does not survive it."""

    fault: str
    own: str
    action: Callable[[], str]

    def __str__(self) -> str:
        return self.own


@dataclass(frozen=True, slots=True)
class Result:
    """What was seen of a row. `live` is the slowest answer of `/live` in seconds, None if it was not measured.
    `said` is what `noria explain` made of it."""

    row: Row | LoneRow
    seen: str
    problems: list[str] = field(default_factory=list)
    possible: bool = True
    live: float | None = None
    said: "Said | None" = None

    @property
    def verdict(self) -> str:
        if not self.possible:
            return "not possible here"
        return "broken" if self.problems else "holds"

    @property
    def summary(self) -> str:
        """What was seen, first of all what broke the promise."""
        live = [] if self.live is None else [f"`/live` {1000 * self.live:.0f} ms"]
        return "; ".join([*self.problems, *filter(None, [self.seen]), *live])


def observed(row: Row | LoneRow, act: Callable[[], str]) -> Result:
    """The result of an action alone. An error that is not Broken breaks the promise, too."""
    try:
        return Result(row, act())
    except NotPossible as error:
        return Result(row, str(error), possible=False)
    except Broken as error:
        return Result(row, "", [str(error)])
    except UNEXPECTED as error:
        return Result(row, "", [f"{type(error).__name__}: {error}"])
