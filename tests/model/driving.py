"""Drives the network in tests as the engine does: a small page allocator, sequences, packed steps.

Memory that has not been written, or has been released, holds NaN: reading any of it shows in the result.
"""

import random
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.engine import by_layer
from model.attention.base import Attention
from model.attention.cache import PagePools
from model.attention.inputs import PackedInputs
from model.attention.rope import RopeTables
from model.batch import PageTable, PoolSpec, Slice, StepBatch
from model.checkpoint.open import Checkpoint, open_checkpoint
from model.checkpoint.stored import Stored
from model.config.model import ModelConfig
from model.linear.base import Projection
from model.linear.floats import WeightsOnly
from model.network import weights
from model.network.compiled import CompiledNetwork, compiled_network
from model.network.latent import HeadProducts
from model.network.lora import Lora, LowRank, LowRankPart, StepAdapters
from model.network.tensors import places
from model.network.transformer import Transformer
from model.sampling_params import SamplingParams
from model.sharding.shard import shard_of
from model.step.packing import pack
from model.step.runner import ModelRunner
from tests.model.attention.attending import best

CPU = torch.device("cpu")
EXPERTS: Mapping[str, Any] = {
    "n_experts": 5,
    "n_experts_per_token": 2,
    "expert_hidden_dim": 40,
    "n_shared_experts": 2,
    "routed_scale": 1.7,
    "first_k_dense_replace": 1,
}
"""Changes of `tiny` for a network with a dense layer, then layers of experts of which some serve every token."""


def tiny(windows: Sequence[int | None] = (None, None), **changes: object) -> ModelConfig:
    """A model of a few thousand weights with one layer a window."""
    values: dict[str, object] = {
        "family": "mistral",
        "dim": 32,
        "n_layers": len(windows),
        "n_heads": 4,
        "n_kv_heads": 2,
        "head_dim": 8,
        "hidden_dim": 48,
        "vocab_size": 64,
        "norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position": 512,
        "windows": tuple(windows),
        "dtype": "float32",
    }
    return ModelConfig(**{**values, **changes})  # type: ignore[arg-type]


def random_stored(config: ModelConfig, seed: int = 0) -> Iterator[tuple[str, Stored]]:
    """`random_tensors` as a checkpoint gives them."""
    return ((name, Stored(tensor)) for name, tensor in random_tensors(config, seed))


def random_tensors(config: ModelConfig, seed: int = 0) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a checkpoint under native names. Their values are large enough to make attention sharp."""
    generator = torch.Generator().manual_seed(seed)
    for name, place in places(shard_of(config)):
        tensor = torch.randn(place.shape, generator=generator) * (place.shape[-1] ** -0.5) * 1.5
        yield name, 1 + 0.1 * tensor if name.endswith("norm.weight") else tensor


def checkpoint(config: ModelConfig, tensors: Iterable[tuple[str, Stored]] | None = None) -> Checkpoint:
    """A checkpoint of these tensors, else of random weights, for `load_from`."""

    def read(skip: Collection[str]) -> Iterator[tuple[str, Stored]]:
        return (pair for pair in (random_stored(config) if tensors is None else tensors) if pair[0] not in skip)

    return Checkpoint(config, "half", read)


def random_model(config: ModelConfig, seed: int = 0, device: torch.device = CPU) -> Transformer:
    with torch.device("meta"):
        model = Transformer(config)
    weights.load(model, shard_of(config), "half", random_stored(config, seed), torch.float32, device, lambda _: None)
    return model


def loaded(source: Path | Checkpoint, scheme: str = "none") -> Transformer:
    """The network of a model directory or a checkpoint in float32, with its projections in a scheme."""
    opened = open_checkpoint(source) if isinstance(source, Path) else source
    with torch.device("meta"):
        model = Transformer(opened.config, scheme)
    weights.load(model, shard_of(opened.config), opened.rotation, opened.tensors(), torch.float32, CPU, lambda _: None)
    return model.eval()


def network(directory: Path, scheme: str = "none") -> "Driver":
    """The network of a model directory, as `loaded`, with the attention that serves it."""
    return Driver(loaded(directory, scheme), best())


@dataclass
class Wheel:
    """Free pages of every pool, handed out in order or shuffled."""

    pools: tuple[PoolSpec, ...]
    page_size: int
    shuffle: int | None = None
    free: list[list[int]] = field(init=False)

    def __post_init__(self) -> None:
        self.free = [list(range(pool.n_pages))[::-1] for pool in self.pools]
        if self.shuffle is not None:
            for pages in self.free:
                random.Random(self.shuffle).shuffle(pages)


@dataclass
class Rider:
    """Tokens of one sequence, how many are computed, its pages, and its adapter."""

    tokens: list[int]
    n_prompt: int
    params: SamplingParams = field(default_factory=SamplingParams)
    done: int = 0
    adapter: Lora | None = None
    tables: list[tuple[int, list[int]]] = field(default_factory=list)


class Driver:
    """A model with its pools; `step` computes the next tokens of several sequences at once."""

    def __init__(
        self, model: Transformer, attention: Attention, n_pages: int = 64, shuffle: int | None = None, length: int = 512
    ) -> None:
        config = model.config
        specs = tuple(PoolSpec(window, n_pages) for window in config.pool_windows)
        self.model, self.attention, self.windows = model, attention, config.pool_windows
        self.device = next(model.parameters()).device
        self.pools = PagePools.allocate(
            config, specs, lambda shape: attention.allocate(shape, torch.float32, self.device)
        )
        self.tables = RopeTables.build(config, length, self.device)
        self.wheel = Wheel(specs, attention.page_size, shuffle)
        self.compiled: CompiledNetwork | None = None
        for layer in self.pools.layers:
            layer.k.fill_(float("nan"))
            layer.v.fill_(float("nan"))

    def start(self, tokens: Sequence[int], adapter: Lora | None = None) -> Rider:
        return Rider(list(tokens), len(tokens), tables=[(0, []) for _ in self.windows], adapter=adapter)

    def compile(self) -> None:
        """From now on the kernels compute a step in one call."""
        self.compiled = compiled_network(self.model, self.attention, self.pools, self.tables, 4)
        assert self.compiled is not None

    @torch.inference_mode()
    def step(self, parts: Sequence[tuple[Rider, int]]) -> list[Tensor]:
        """Compute the next n tokens of each sequence; logits [n, vocab_size] of each, [n, 0] without a head."""
        slices = tuple(self._slice(sequence, n) for sequence, n in parts)
        inputs = pack(StepBatch(slices), self.attention.page_size, self.windows, self.device)
        own = [rider.adapter for rider, _ in parts]
        adapters = StepAdapters.of(own, [n for _, n in parts], self.device)
        if self.compiled is not None:
            hidden, _ = self.compiled.step(slices, [0] * len(slices), None, own)
        else:
            hidden = self.model(inputs, self.tables, self.attention, self.pools, adapters)
        logits = self.model.logits(hidden, adapters) if self.model.has_head else hidden[:, :0]
        for sequence, n in parts:
            sequence.done += n
        return list(logits.split([n for _, n in parts]))

    def whole(self, tokens: Sequence[int], chunk: int | None = None, adapter: Lora | None = None) -> Tensor:
        """Logits [len(tokens), vocab_size] of one sequence computed in chunks (None: at once)."""
        sequence = self.start(tokens, adapter)
        parts = []
        while sequence.done < len(tokens):
            parts += self.step([(sequence, min(chunk or len(tokens), len(tokens) - sequence.done))])
        return torch.cat(parts)

    def _slice(self, sequence: Rider, n: int) -> Slice:
        start, stop = sequence.done, sequence.done + n
        for i, window in enumerate(self.windows):
            sequence.tables[i] = self._move_table(i, window, sequence.tables[i], start, stop)
        tables = tuple(PageTable(first, tuple(pages)) for first, pages in sequence.tables)
        return Slice(id(sequence), sequence.tokens, sequence.n_prompt, start, stop, tables, sequence.params)

    def _move_table(
        self, pool: int, window: int | None, table: tuple[int, list[int]], start: int, stop: int
    ) -> tuple[int, list[int]]:
        """Release what has left the window, then take what the new positions need."""
        first, pages = table
        size = self.attention.page_size
        while window is not None and pages and (first + 1) * size <= start - window + 1:
            self._release(pool, pages.pop(0))
            first += 1
        while (first + len(pages)) * size < stop:
            pages.append(self.wheel.free[pool].pop())
        return first, pages

    def _release(self, pool: int, page: int) -> None:
        for layer, owner in zip(self.pools.layers, self.pools.pool_of_layer, strict=True):
            if owner == pool:
                layer.k[page] = float("nan")
                layer.v[page] = float("nan")
        self.wheel.free[pool].append(page)


class MediaDriver(Driver):
    """Puts the embeddings of images or audio, in order, in place of those of their token."""

    def __init__(self, model: Transformer, token: int, embeddings: Tensor) -> None:
        super().__init__(model, best(), length=2048)
        self.token, self.embeddings = token, embeddings

    @torch.inference_mode()
    def log_probabilities(self, tokens: list[int], chunk: int) -> Tensor:
        sequence, found = self.start(tokens), []
        while sequence.done < len(tokens):
            n = min(chunk, len(tokens) - sequence.done)
            states = self.model(self._inputs(sequence, n), self.tables, self.attention, self.pools)
            found.append(self.model.logits(states))
            sequence.done += n
        return torch.cat(found).log_softmax(-1)

    def _inputs(self, sequence: Rider, n: int) -> PackedInputs:
        item = self._slice(sequence, n)
        before = sequence.tokens[: item.start].count(self.token)
        rows = [row for row, token in enumerate(sequence.tokens[item.start : item.stop]) if token == self.token]
        packed = pack(StepBatch((item,)), self.attention.page_size, self.windows, self.device)
        values = self.embeddings[before : before + len(rows)]
        return replace(packed, embedded=(torch.tensor(rows, dtype=torch.int64), values))


def random_adapter(config: ModelConfig, rank: int, targets: Sequence[str]) -> Lora:
    """An adapter of one part for each target of every layer, and for the head if "output" is among the targets."""
    q = config.n_heads * config.head_dim
    sizes = {"wqkv": (config.dim, q), "wo": (q, config.dim), "w13": (config.dim, config.hidden_dim)}
    sizes |= {"w2": (config.hidden_dim, config.dim), "output": (config.dim, config.vocab_size)}
    layers: list[dict[str, LowRank]] = [
        {
            name: LowRank(torch.randn(rank, n_in) / n_in**0.5, (LowRankPart(0, 0, torch.randn(n_out, rank)),))
            for name, (n_in, n_out) in sizes.items()
            if name in targets
        }
        for _ in range(config.n_layers)
    ]
    heads = [layer.pop("output", None) for layer in layers]
    return Lora(tuple(layers), heads[0])


def run_ahead(runner: ModelRunner, patch: pytest.MonkeyPatch, **info: Any) -> None:
    """Let a runner on a CPU run ahead, as on a GPU, with these changes of its `info`. PyTorch then computes."""
    patch.setattr(runner, "info", replace(runner.info, **{"runs_ahead": True, **info}))
    if runner.info.runs_ahead:
        patch.setattr(runner, "executor", by_layer(runner))


def storages(model: Transformer) -> int:
    """Bytes of all weights of a loaded model, each memory counted once."""
    found: list[Tensor] = [*model.parameters()]
    for part in model.modules():
        if isinstance(part, Projection) and part.packed is not None:
            found += [tensor for tensor in (part.packed.packed, part.packed.scales) if tensor is not None]
        elif isinstance(part, HeadProducts):
            found += [one.packed for one in part.packed]
        elif isinstance(part, WeightsOnly) and part.weights is not None:
            found += [part.weights.values, *part.weights.tables]
    memory = [tensor.untyped_storage() for tensor in found]
    return sum({each.data_ptr(): each.nbytes() for each in memory}.values())


def quantized(scheme: str, **changes: Any) -> Transformer:
    """A tiny model with random weights in a scheme, one layer with a window."""
    config = tiny((None, 9), **changes)
    with torch.device("meta"):
        model = Transformer(config, scheme)
    weights.load(model, shard_of(config), "half", random_stored(config), torch.float32, CPU, lambda _: None)
    return model.eval()
