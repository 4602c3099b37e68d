"""Chooses the tiles of a model's weights: as an earlier start on this machine chose them, else by timing."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

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
    """The contests hold at most `rounds` rounds, and none begins after `seconds`. `uses_kept`: only for new shapes."""

    rounds: int
    seconds: float
    uses_kept: bool


EFFORTS = {"start": Effort(12, 0.08, uses_kept=True), "thorough": Effort(100, 5.0, uses_kept=False)}
"""By the value of --tune; "off" has none."""


@dataclass(frozen=True, slots=True)
class Tuner:
    """Chooses tiles for `kernels`, which compute with `threads` threads, and keeps the choices in `store`."""

    kernels: Kernels
    threads: int
    store: Store

    def tune(self, weights: Iterable[PackedWeights], effort: Effort) -> None:
        """Set the tiles of all `weights` before they are used. A line of the log says which tiles."""
        begin = perf_counter()
        shapes = by_shape(weights)
        kept = self.store.read()
        chosen = self._usable(kept, shapes) if effort.uses_kept else {}
        new = {shape: some for shape, some in shapes.items() if shape not in chosen}
        if new:
            timings = self._time(new, effort)
            chosen |= {shape: _winners(timings[shape]) for shape in new}
            done = (shape for shape in new if all(each.contest.is_decided for each in timings[shape]))
            self.store.write({**kept, **{shape: chosen[shape] for shape in done}})
        for shape, some in shapes.items():
            self._set(some, chosen[shape])
        took = f"{len(new)} of {len(shapes)} shapes timed, {perf_counter() - begin:.3f} s"
        log.debug("tiles of products: %s (%s)", describe(chosen), took)

    def _usable(self, kept: Mapping[str, Chosen], shapes: Iterable[str]) -> dict[str, Chosen]:
        """What is kept for these shapes, if this library has all the tiles."""
        return {shape: kept[shape] for shape in shapes if shape in kept and self._knows(shape, kept[shape])}

    def _knows(self, shape: str, names: Chosen) -> bool:
        known = {DEFAULT, *self.kernels.tiles(FORMATS.index(shape.split()[0]))}
        return names.keys() == set(map(str, ROW_CLASSES)) and known.issuperset(names.values())

    def _time(self, shapes: Mapping[str, Sequence[PackedWeights]], effort: Effort) -> dict[str, list[Timing]]:
        """The contests of each shape, held, in the order of the classes."""
        timings = {
            shape: [timing(self.kernels, some, i, self.threads) for i in range(len(ROW_CLASSES))]
            for shape, some in shapes.items()
        }
        by_class = zip(*timings.values(), strict=True)  # between two contests of a shape come those of others
        hold([each.contest for some in by_class for each in some], effort.rounds, effort.seconds)
        return timings

    def _set(self, weights: Iterable[PackedWeights], names: Chosen) -> None:
        for each in weights:
            tiles = (DEFAULT, *self.kernels.tiles(each.record.format))
            each.record.tiles[:] = [tiles.index(names[str(first)]) for first in ROW_CLASSES]


def by_shape(weights: Iterable[PackedWeights]) -> dict[str, list[PackedWeights]]:
    """Weights by the name of their shape, without small ones and those that AMX multiplies in its own tiles."""
    shapes: dict[str, list[PackedWeights]] = {}
    for each in weights:
        if each.packed.nbytes >= LEAST_BYTES and not each.record.by_tiles:
            shapes.setdefault(f"{FORMATS[each.record.format]} {each.n_in}x{each.n_out}", []).append(each)
    return shapes


def _winners(timings: Sequence[Timing]) -> Chosen:
    return {str(first): each.winner for first, each in zip(ROW_CLASSES, timings, strict=True)}


def describe(chosen: Mapping[str, Chosen]) -> str:
    """The tiles of each shape, in the order of the classes, such as "int8 576x960 1x4/default/6x2/8x2"."""
    return ", ".join(f"{shape} {'/'.join(names.values())}" for shape, names in chosen.items()) or "the defaults"
