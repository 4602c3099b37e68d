"""Adapters of a loaded model: made from files that fit it, and held in memory by their numbers."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from model.checkpoint.adapters.open import open_adapter
from model.checkpoint.adapters.pairs import AdapterFile, Pair
from model.config.model import ModelConfig
from model.errors import ModelError, size
from model.kernels.cpu.records import TARGETS
from model.machine.device import free_bytes, name_of
from model.network.lora import Lora, LowRank, LowRankPart
from model.network.tensors import HEAD, TensorPlace, places
from model.network.transformer import Transformer
from model.sharding.shard import shard_of

log = logging.getLogger(__name__)

BLANK_RANK = 16
OpenAndRead = Callable[[Path], tuple[str, Lora]]
"""Reads an adapter and its fingerprint. Raises ModelError."""


class Matrices(NamedTuple):
    """A and B of one weight in the network's format: B's rows belong to outputs `first..` of the fused projection."""

    first: int
    a: Tensor
    b: Tensor


def read_adapter(
    path: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device, *, packed: bool
) -> tuple[str, Lora]:
    """Read the adapter in files, and its fingerprint; `packed` for the compiled kernels.

    Raises ModelError, also if it does not fit the model or the memory.
    """
    file = open_adapter(path)
    check_shapes(file, config)
    needed, free = file.n_values * dtype.itemsize, free_bytes(device)
    if needed > free:
        raise ModelError(f"the adapter {path.name!r} needs {size(needed)}, {size(free)} are free; unload another")
    adapter = place(file, config, dtype, device)
    return file.fingerprint, adapter.pack() if packed else adapter


def count_values(path: Path, config: ModelConfig) -> int:
    """Count the values in an adapter. Raises ModelError for one that does not fit."""
    file = open_adapter(path)
    check_shapes(file, config)
    return file.n_values


def check_shapes(file: AdapterFile, config: ModelConfig) -> None:
    """Raise ModelError for an adapter that was trained on another base: its shapes do not match."""
    known = _places(config)
    for weight, pair in file.pairs.items():
        if (where := known.get(weight)) is None:
            absent = int(weight.split(".")[1]) >= config.n_layers
            kind = "experts" if ".feed_forward." in weight else "latent attention"
            reason = f"the model has {config.n_layers} layers" if absent else f"the model has {kind} there"
        elif where.shape != (pair.n_out, pair.n_in):
            n_out, n_in = where.shape
            found = f"{[pair.rank, pair.n_in]} and {[pair.n_out, pair.rank]}"
            reason = f"its A and B have shapes {found}, the model needs {[pair.rank, n_in]} and {[n_out, pair.rank]}"
        else:
            continue
        raise ModelError(f"{file.path.name}: {pair.a!r} does not fit: {reason}; this is not the adapter's base")


def place(file: AdapterFile, config: ModelConfig, dtype: torch.dtype, device: torch.device) -> Lora:
    """Place the matrices in the order and the parts of the network's fused projections; the scale goes into B.

    Raises ModelError for values with which no request could be computed.
    """
    known = _places(config)
    found: dict[str, list[Matrices]] = {}
    for weight, a, b in file.tensors():
        where = known[weight]
        order = where.order(len(b), file.rotation)
        b = (b if order is None else b[order]).float().mul_(file.pairs[weight].scale)
        _check_values(file, file.pairs[weight], a.float(), b, dtype)
        pair = Matrices(where.first, a.to(dtype).to(device), b.to(dtype).to(device))
        found.setdefault(where.parameter, []).append(pair)
    products = {name: _product(matrices) for name, matrices in found.items()}
    return Lora(tuple(_layer(products, number) for number in range(config.n_layers)), products.get(HEAD))


def _check_values(file: AdapterFile, pair: Pair, a: Tensor, b: Tensor, dtype: torch.dtype) -> None:
    """Raise ModelError for an adapter with which no request could be computed; the scale is in `b`.

    What it adds to an output is at most (|B| |A| 1) for inputs from -1 to 1. RMSNorm squares it in float32.
    """
    peak = float(torch.stack([a.abs().max(), b.abs().max(), (b.abs() @ a.abs().sum(1)).max()]).max())
    limit = min(torch.finfo(dtype).max, torch.finfo(torch.float32).max ** 0.5)
    if not peak <= limit:
        raise ModelError(
            f"{file.path.name}: {pair.a!r} and its lora_B reach {peak:.3g} with the scale {pair.scale:.3g}; in "
            f"{name_of(dtype)} Noria supports {limit:.3g}: check lora_alpha or scaling, and the file for damage"
        )


def blank(model: Transformer) -> Lora:
    """Make an adapter of zeros to all products of a network, which share the memory of their matrices."""
    device = next(model.parameters()).device

    @cache
    def zeros(*shape: int) -> Tensor:
        return torch.zeros(shape, dtype=model.dtype, device=device)

    def product(part: Any) -> LowRank:
        return LowRank(zeros(BLANK_RANK, part.n_in), (LowRankPart(0, 0, zeros(part.n_out, BLANK_RANK)),))

    def layer(block: Any) -> Mapping[str, LowRank]:
        owners = (block.attention, block.feed_forward)
        return {name: product(getattr(owner, name)) for name in TARGETS for owner in owners if hasattr(owner, name)}

    return Lora(tuple(map(layer, model.layers)), product(model.output))


def _places(config: ModelConfig) -> Mapping[str, TensorPlace]:
    """Return the places of all weights; a tied head may have an adapter, too."""
    return {**dict(places(shard_of(config))), HEAD: TensorPlace(HEAD, 0, (config.vocab_size, config.dim))}


def _product(matrices: list[Matrices]) -> LowRank:
    matrices.sort(key=lambda pair: pair.first)
    parts, rank = [], 0
    for first, a, b in matrices:
        parts.append(LowRankPart(first, rank, b.contiguous()))
        rank += len(a)
    return LowRank(torch.cat([pair.a for pair in matrices]).contiguous(), tuple(parts))


def _layer(products: Mapping[str, LowRank], number: int) -> Mapping[str, LowRank]:
    """Return the products of a layer, by target."""
    prefix = f"layers.{number}."
    return {name.split(".")[-2]: product for name, product in products.items() if name.startswith(prefix)}


class AdapterSource(NamedTuple):
    """Where an adapter was read, and its fingerprint then."""

    path: Path
    fingerprint: str


class AdapterStore:
    """Adapters by number, at most `capacity` in memory. The least recently used one is read again when it is needed.

    `begin_step` and `get` are called by one thread. All else may run on another one meanwhile.
    """

    def __init__(self, read: OpenAndRead, capacity: int) -> None:
        self._read, self._capacity = read, capacity
        self._known: dict[int, AdapterSource] = {}
        self._in_memory: OrderedDict[int, Lora] = OrderedDict()  # least recently used first
        self._in_step: frozenset[int] = frozenset()
        self._lock = threading.Lock()

    @property
    def n_bytes(self) -> int:
        return sum(adapter.n_bytes for adapter in self._in_memory.values())

    def load(self, number: int, path: str) -> None:
        """Read an adapter. If the present step uses all places, it is only checked. Raises ModelError."""
        fingerprint, adapter = self._read(Path(path))
        with self._lock:
            self._known[number] = AdapterSource(Path(path), fingerprint)
            if len(self._in_step) < self._capacity:
                self._keep(number, adapter, self._in_step)

    def hold(self, number: int, adapter: Lora) -> None:
        """Keep an adapter that has no files, until `unload`."""
        with self._lock:
            self._in_memory[number] = adapter

    def has(self, number: int) -> bool:
        return number in self._in_memory

    def fingerprint(self, number: int) -> str:
        """Return the hash of the adapter's files when it was loaded; for an unknown one, a text that no files have."""
        known = self._known.get(number)
        return known.fingerprint if known else f"unknown {number}"

    def read_again(self, number: int, running: Collection[int]) -> None:
        """Read an adapter that has left the memory. At most capacity - 1 are in `running` and keep their place.

        Steps may begin while it is read. Raises ModelError.
        """
        with self._lock:
            known = self._known.get(number)
            if known is None or number in self._in_memory:
                return
            self._make_room(running)
        adapter = _read_same(self._read, known)
        with self._lock:
            if number in self._known:
                self._keep(number, adapter, running)

    def unload(self, number: int) -> None:
        """Forget an adapter that no request uses."""
        with self._lock:
            self._known.pop(number, None)
            self._in_memory.pop(number, None)

    def begin_step(self, numbers: Collection[int]) -> Mapping[int, str]:
        """Read the adapters of a step that are not in memory; for each that cannot be read, why."""
        faults: dict[int, str] = {}
        with self._lock:
            self._in_step = frozenset(numbers)
            for number in sorted(self._in_step):
                try:
                    self._keep(number, self._get(number), self._in_step)
                except ModelError as error:
                    log.warning("adapter %d cannot be used: %s", number, error)
                    faults[number] = f"the request's adapter cannot be read again: {error}"
        return faults

    def get(self, number: int) -> Lora:
        """Return an adapter of the present step. Raises ModelError if it had to be read again and cannot be."""
        with self._lock:
            return self._get(number)

    def _get(self, number: int) -> Lora:
        if (adapter := self._in_memory.get(number)) is not None:
            return adapter
        if number not in self._known:
            raise ModelError(f"no adapter has the number {number}")
        self._make_room(self._in_step)
        return _read_same(self._read, self._known[number])

    def _keep(self, number: int, adapter: Lora, used: Collection[int]) -> None:
        """Put an adapter in memory, as the most recently used one, beside those that are `used`."""
        if number not in self._in_memory:
            self._make_room(used)
        self._in_memory[number] = adapter
        self._in_memory.move_to_end(number)

    def _make_room(self, used: Collection[int]) -> None:
        """Drop adapters that are not `used` until one more fits, those of the present step last."""
        idle = [number for number in self._in_memory if number not in used]
        idle.sort(key=self._in_step.__contains__)
        for number in idle[: max(0, len(self._in_memory) - self._capacity + 1)]:
            del self._in_memory[number]


def _read_same(read: OpenAndRead, known: AdapterSource) -> Lora:
    fingerprint, adapter = read(known.path)
    if fingerprint != known.fingerprint:
        raise ModelError(f"the files of {known.path.name!r} have changed since it was loaded; load it again")
    return adapter
