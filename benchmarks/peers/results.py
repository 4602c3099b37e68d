"""The results of all engines as rows and as a table."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from benchmarks.peers.engines import KINDS, Engine
from benchmarks.peers.loads import MILLISECONDS

Found = Mapping[str, Mapping[str, Sequence[float]]]
"""Engine -> case -> one value for each round."""
WHY_CHARS = 80


@dataclass(frozen=True, slots=True)
class Row:
    """One case at equal bits a weight: Noria's median, then those of the others, best first.

    `failed` are engines of these bits that have no figure, and why.
    """

    case: str
    bits: str
    ours: float | None
    peers: dict[str, float]
    references: dict[str, float]
    failed: dict[str, str]

    @property
    def best(self) -> str | None:
        """The name of the best peer."""
        return next(iter(self.peers), None)


def rows(chosen: Sequence[Engine], found: Found, failed: Mapping[str, str]) -> Iterator[Row]:
    """All cases, for each number of bits."""
    medians = {name: {case: statistics.median(runs) for case, runs in by.items()} for name, by in found.items()}
    cases = dict.fromkeys(case for by in medians.values() for case in by)
    for case in cases:
        for bits in dict.fromkeys(engine.bits for engine in chosen):
            equal = [engine for engine in chosen if engine.bits == bits]
            same = [engine for engine in equal if case in medians[engine.name]]
            why = {e.name: failed[e.name] for e in equal if e not in same and e.name in failed}
            values = {kind: {e.name: medians[e.name][case] for e in same if e.kind == kind} for kind in KINDS}
            best_first = sorted(values["peer"].items(), key=lambda item: item[1], reverse=MILLISECONDS not in case)
            if same:
                ours = next(iter(values["ours"].values()), None)
                yield Row(case, bits, ours, dict(best_first), values["reference"], why)


def table(made: Sequence[Row]) -> Table:
    """The rows for a terminal, with Noria's figure divided by each other one."""
    result = Table("", "bits", "noria", "best peer", "ratio", "others")
    for column in result.columns[1:5]:
        column.justify = "right"
    for row in made:
        result.add_row(*cells(row))
    return result


def cells(row: Row) -> tuple[str, ...]:
    others = {**row.peers, **row.references}
    rest = [f"{name} {figure(value)} ({ratio(row, value)})" for name, value in others.items() if name != row.best]
    rest += [f"{name}: {why[:WHY_CHARS]}" for name, why in row.failed.items()]
    best = f"{row.best} {figure(row.peers[row.best])}" if row.best else "not measured"
    compared = ratio(row, row.peers[row.best]) if row.best else "-"
    ours = "not measured" if row.ours is None else figure(row.ours)
    return (row.case, row.bits, ours, best, compared, ", ".join(rest))


def figure(value: float) -> str:
    """Three digits at least: 1234, 12.3, 1.23."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def ratio(row: Row, value: float) -> str:
    return "-" if row.ours is None else f"{row.ours / value:.2f}"
