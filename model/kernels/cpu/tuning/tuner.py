"""Chooses among forms that give the same bits: as an earlier start on this machine chose, else by timing."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from time import perf_counter
from typing import Protocol

from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.packed import FORMATS, PackedWeights
from model.kernels.cpu.records import ROW_CLASSES
from model.kernels.cpu.tuning.contest import hold
from model.kernels.cpu.tuning.store import Chosen, Store
from model.kernels.cpu.tuning.trials import DEFAULT, Timing, timing

log = logging.getLogger(__name__)

LEAST_BYTES = 2**17
"""A product with less weight is over before a difference can be measured: the default serves."""


@dataclass(frozen=True, slots=True)
class Effort:
    """The contests hold at most `rounds` rounds, and none begins after `seconds`. `uses_kept`: only for what is new."""

    rounds: int
    seconds: float
    uses_kept: bool


EFFORTS = {"start": Effort(12, 0.08, uses_kept=True), "thorough": Effort(100, 5.0, uses_kept=False)}
"""By the value of --tune; "off" has none."""


class Subject(Protocol):
    """Something whose fastest form is chosen. Each of its decisions has a name, as each candidate has."""

    def knows(self, names: Chosen) -> bool:
        """Whether there is a candidate of this name for each decision."""

    def timings(self) -> Mapping[str, Timing]:
        """The contest of each decision, not held yet; none if there is no memory for it."""

    def set(self, names: Chosen) -> None:
        """Use these candidates, before the subject is used."""


@dataclass(frozen=True, slots=True)
class Products:
    """The tiles of `weights`, which have one shape: one for each class of rows."""

    kernels: Kernels
    weights: Sequence[PackedWeights]
    threads: int

    def knows(self, names: Chosen) -> bool:
        return names.keys() == set(map(str, ROW_CLASSES)) and set(self._tiles).issuperset(names.values())

    def timings(self) -> dict[str, Timing]:
        return {str(first): timing(self.kernels, self.weights, i, self.threads) for i, first in enumerate(ROW_CLASSES)}

    def set(self, names: Chosen) -> None:
        for each in self.weights:
            each.record.tiles[:] = [self._tiles.index(names[str(first)]) for first in ROW_CLASSES]

    @property
    def _tiles(self) -> Sequence[str]:
        return DEFAULT, *self.kernels.tiles(self.weights[0].record.format)


@dataclass(frozen=True, slots=True)
class Tuner:
    """Chooses tiles for `kernels`, which compute with `threads` threads, and keeps the choices in `store`."""

    kernels: Kernels
    threads: int
    store: Store

    def tune(
        self, weights: Iterable[PackedWeights], effort: Effort, others: Mapping[str, Subject] | None = None
    ) -> None:
        """Choose for all `weights` and for `others`, by name, before they are used. A line of the log says what."""
        begin = perf_counter()
        shapes = by_shape(weights).items()
        subjects = {shape: Products(self.kernels, some, self.threads) for shape, some in shapes} | dict(others or {})
        kept = self.store.read()
        chosen = _usable(kept, subjects) if effort.uses_kept else {}
        new = {name: subject for name, subject in subjects.items() if name not in chosen}
        if new:
            timings = _time(new, effort, begin)
            chosen |= {name: {by: each.winner for by, each in timings[name].items()} for name in new}
            done = [name for name in new if timings[name] and all(t.contest.is_decided for t in timings[name].values())]
            self.store.write({**kept, **{name: chosen[name] for name in done}})
        for name, subject in subjects.items():
            subject.set(chosen[name])
        took = f"{len(new)} of {len(subjects)} timed, {perf_counter() - begin:.3f} s"
        log.debug("tiles: %s (%s)", describe(chosen), took)


def _usable(kept: Mapping[str, Chosen], subjects: Mapping[str, Subject]) -> dict[str, Chosen]:
    """What is kept for these subjects, if they still have all these candidates."""
    return {name: kept[name] for name, subject in subjects.items() if name in kept and subject.knows(kept[name])}


def _time(subjects: Mapping[str, Subject], effort: Effort, begin: float) -> dict[str, Mapping[str, Timing]]:
    """The contests of each subject, held. The time to make them counts, too."""
    timings = {name: subject.timings() for name, subject in subjects.items()}
    in_turns = zip_longest(*(each.values() for each in timings.values()))  # others come between two of one subject
    contests = [each.contest for some in in_turns for each in some if each is not None]
    hold(contests, effort.rounds, effort.seconds - (perf_counter() - begin))
    return timings


def by_shape(weights: Iterable[PackedWeights]) -> dict[str, list[PackedWeights]]:
    """Weights by the name of their shape, without small ones and those that AMX multiplies in its own tiles."""
    shapes: dict[str, list[PackedWeights]] = {}
    for each in weights:
        if each.packed.nbytes >= LEAST_BYTES and not each.record.by_tiles:
            shapes.setdefault(f"{FORMATS[each.record.format]} {each.n_in}x{each.n_out}", []).append(each)
    return shapes


def describe(chosen: Mapping[str, Chosen]) -> str:
    """The choices of each subject, in the order of its decisions, such as "int8 576x960 1x4/default/6x2/8x2"."""
    return ", ".join(f"{shape} {'/'.join(names.values())}" for shape, names in chosen.items()) or "the defaults"
