"""Seconds of launches on a card: the roofline of each launch, from a data sheet and from assumptions."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from torch import Tensor

from benchmarks.gpu.absent import Launch
from model.attention.tiles import FAN, SHORT, SPLIT
from model.attention.triton import NO_WINDOW
from model.batch import Slice, StepBatch
from model.config import ModelConfig

BANDWIDTH_SHARE, ARITHMETIC_SHARE = 0.8, 0.6
"""The shares of its data sheet that a machine reaches."""
ACTIVATION = 2
"""Bytes of an activation."""


class Gpu(NamedTuple):
    """Bytes of memory, bytes/s that it reads, and dense operations/s in bfloat16, by the maker's data sheet."""

    name: str
    memory: float
    bandwidth: float
    operations: float


class Card(NamedTuple):
    """A data sheet, the compute capability, and the number of multiprocessors."""

    gpu: Gpu
    capability: tuple[int, int]
    n_sms: int


CARDS = {
    "h100": Card(Gpu("H100 SXM 80 GB", 80e9, 3.35e12, 989e12), (9, 0), 132),
    "h200": Card(Gpu("H200 SXM 141 GB", 141e9, 4.8e12, 989e12), (9, 0), 132),
    "a100": Card(Gpu("A100 SXM 80 GB", 80e9, 2.039e12, 312e12), (8, 0), 108),
    "l4": Card(Gpu("L4 24 GB", 24e9, 0.3e12, 121e12), (8, 9), 58),
    "4090": Card(Gpu("GeForce RTX 4090", 24e9, 1.008e12, 165e12), (8, 9), 128),
}


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Seconds that are neither counted nor from a data sheet, and other numbers like them.

    `gap`: between two kernels of a graph; `gap_outside`: between two others. `shortest`: of any kernel. `host`: that
    the host needs to launch one kernel outside of a graph. `walk`: of a pass over a block of keys in attention. `idle`:
    of a program that finds nothing to do, `resident` of which a multiprocessor runs at a time. `l2` is the speed of the
    L2 cache as a multiple of the memory's, and `sm_bandwidth` the bytes/s that one multiprocessor gets from it. A
    program that samples a row reads it at most `sampling_passes` times. `attention_share` is the share of the data
    sheet's rate that attention over prompts reaches, and `fp8_rate` the speed of fp8 products as a multiple of
    bfloat16's.
    """

    gap: float = 1e-6
    gap_outside: float = 3e-6
    shortest: float = 1.5e-6
    host: float = 5e-6
    walk: float = 0.5e-6
    idle: float = 1e-6
    resident: int = 4
    l2: float = 2.0
    attention_share: float = 0.33
    fp8_rate: float = 2.0
    sampling_passes: int = 36
    sm_bandwidth: float = 50e9


class Times(NamedTuple):
    """Bytes, operations, launches inside and outside of graphs, and seconds on the device and of launching."""

    n_bytes: float = 0.0
    operations: float = 0.0
    in_graph: float = 0.0
    outside: float = 0.0
    device: float = 0.0
    host: float = 0.0

    def plus(self, other: "Times") -> "Times":
        return Times(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass(frozen=True, slots=True)
class Estimator:
    """The times of a step on a card."""

    card: Card
    config: ModelConfig
    assumed: Assumptions = Assumptions()

    def times(self, launches: Sequence[Launch], batch: StepBatch) -> Times:
        total = Times()
        for launch in launches:
            total = total.plus(self._one(launch, batch))
        return total

    def _one(self, launch: Launch, batch: StepBatch) -> Times:
        n_bytes, operations, share = self._work(launch, batch)
        gpu, assumed = self.card.gpu, self.assumed
        bandwidth = gpu.bandwidth * BANDWIDTH_SHARE
        busy = max(
            n_bytes / bandwidth,
            operations / (gpu.operations * share),
            _cached(launch) / (bandwidth * assumed.l2),
            self._walked(launch, batch),
            self._sampled(launch, batch),
            assumed.shortest,
        )
        busy += self._idle(launch, batch) + (assumed.gap if launch.in_graph else assumed.gap_outside)
        inside = int(launch.in_graph)
        return Times(n_bytes, operations, inside, 1 - inside, busy, 0.0 if inside else assumed.host)

    def _work(self, launch: Launch, batch: StepBatch) -> tuple[float, float, float]:
        """Bytes and operations of a launch, and the share of the data sheet's rate that it reaches."""
        if launch.name in BESIDE_PAGES:
            n_bytes = 2.0 * launch.arguments[BESIDE_PAGES[launch.name]].nbytes
            if not launch.name.startswith("attend"):
                return n_bytes, 0.0, ARITHMETIC_SHARE
            width, (keys, pairs) = self.config.head_dim * 4, _visible(launch, batch)
            n_bytes += keys * self.config.n_kv_heads * width
            return n_bytes, float(pairs * self.config.n_heads * width), self.assumed.attention_share
        if launch.name == "_product":
            return launch.n_bytes - _sums(launch), _operations(launch), ARITHMETIC_SHARE
        rate = self.assumed.fp8_rate if launch.name == "_scaled_mm_v2" else 1.0
        return launch.n_bytes, _operations(launch), ARITHMETIC_SHARE * rate

    def _walked(self, launch: Launch, batch: StepBatch) -> float:
        """Seconds of the program of `attend_parts` with the greatest number of passes."""
        if launch.name != "attend_parts":
            return 0.0
        unit, _ = _items(launch, batch)
        longest = max(min(unit, item.stop) for item in _slices(launch, batch))
        return longest / launch.arguments["KEYS"] * self.assumed.walk

    def _sampled(self, launch: Launch, batch: StepBatch) -> float:
        """Seconds of the programs that sample, one for each row."""
        if launch.name != "_sample":
            return 0.0
        (n_rows, n), assumed = launch.arguments["logits"].shape, self.assumed
        passes = assumed.sampling_passes if any(item.params.temperature for item in batch.slices) else 1
        return -(-n_rows // self.card.n_sms) * n * 4 * passes / assumed.sm_bandwidth

    def _idle(self, launch: Launch, batch: StepBatch) -> float:
        """Seconds of the programs of `attend_parts` that find nothing to do."""
        if launch.name != "attend_parts":
            return 0.0
        idle = prod(launch.grid) - _items(launch, batch)[1] * self.config.n_kv_heads
        return max(0, idle) * self.assumed.idle / (self.card.n_sms * self.assumed.resident)


BESIDE_PAGES = {"write": "qkv", "attend_parts": "q", "attend_tiles": "q", "join": "out"}
"""Kernels of attention, and the tensor that each reads and writes besides keys, values and sums of parts."""
FACTORS = {"mm": 0, "_scaled_mm_v2": 0, "addmm_": 1}
"""Matrix products, and the place of the left factor among their tensors; the right one is next."""
LIBRARY_OUTPUTS = 256
"""Outputs of a program of PyTorch's matrix products: an assumption."""


def _operations(launch: Launch) -> float:
    if launch.name == "_product":
        return 2.0 * len(launch.arguments["x"]) * launch.arguments["n_in"] * launch.arguments["n_total"]
    if launch.name not in FACTORS:
        return 0.0
    left, right = _factors(launch)
    return 2.0 * left.numel() * right.shape[-1]


def _cached(launch: Launch) -> float:
    """Bytes that the programs of a product move in the L2 cache: x for each block of outputs, and sums of splits."""
    if launch.name == "_product":
        n_blocks, columns, _ = launch.grid
        rows = n_blocks * launch.arguments["ROWS"]
        return float(columns * rows * launch.arguments["n_in"] * ACTIVATION + 2 * _sums(launch))
    if launch.name in FACTORS:
        left, right = _factors(launch)
        return -(-right.shape[-1] // LIBRARY_OUTPUTS) * float(left.nbytes)
    return 0.0


def _factors(launch: Launch) -> Sequence[Tensor]:
    return launch.tensors[FACTORS[launch.name] :][:2]


def _sums(launch: Launch) -> int:
    """Bytes of the sums that programs of one launch leave for each other."""
    parts = launch.arguments["parts"]
    return 0 if parts is None else parts.nbytes


def _visible(launch: Launch, batch: StepBatch) -> tuple[int, int]:
    """Keys that a launch reads at least, and its pairs of a query and a key."""
    slices = _slices(launch, batch)
    return sum(item.stop for item in slices), sum(_pairs(item.start, item.stop) for item in slices)


def _slices(launch: Launch, batch: StepBatch) -> list[Slice]:
    """The slices of which a launch computes the attention: short ones or longer ones."""
    short = launch.name == "attend_parts"
    return [item for item in batch.slices if (item.stop - item.start <= SHORT) == short]


def _pairs(start: int, stop: int) -> int:
    return (stop * (stop + 1) - start * (start + 1)) // 2


def _items(launch: Launch, batch: StepBatch) -> tuple[int, int]:
    """Keys of an item of short slices, and the number of items: as `plan` on the device chooses them."""
    items, rows = len(launch.arguments["items"]), len(launch.arguments["tops"])
    slices = _slices(launch, batch)
    for unit in (SPLIT, SPLIT * FAN, SPLIT * FAN**2, NO_WINDOW):
        counts = [-(-item.stop // unit) for item in slices]
        n_rows = sum(n * (item.stop - item.start) for n, item in zip(counts, slices, strict=True))
        if sum(counts) <= items and n_rows <= rows:
            break
    return unit, sum(counts)
