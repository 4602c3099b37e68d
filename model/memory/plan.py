"""How much memory a model takes, and how many sequences fit beside it, from its configuration. No torch, no weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from model.batch import PAGE_SIZE, PoolSpec
from model.checkpoint.config import read_config
from model.checkpoint.configs.fields import present_shards
from model.checkpoint.gguf.open import open_gguf
from model.checkpoint.model_files import is_gguf
from model.checkpoint.quantized.config import OwnBits, WeightKind, read_quantization
from model.checkpoint.quantized.parts import own_bits, weight_parts
from model.config.model import VALUE_BYTES, ModelConfig
from model.decide import Decision, decide, encoder_bytes, planned
from model.linear import schemes
from model.memory import sizes as memory
from model.memory.media import MediaSizes, media_sizes
from model.memory.sizes import PoolSizes
from model.options import RunnerOptions, of_draft_model
from model.sharding.layout import Layout, RankPlace
from model.sharding.shard import Shard

LENGTHS = tuple(2**n * 1024 for n in (0, 2, 3, 5, 7, 9, 11))
"""1k, 4k, 8k, 32k, 128k, 512k, 2M tokens."""


@dataclass(frozen=True, slots=True)
class PoolNeed:
    """The page pool of one window: bytes of a position and of a page in all its layers, and the number of pages."""

    window: int | None
    layers: int
    token_bytes: int
    page_bytes: int
    n_pages: int | None


@dataclass(frozen=True, slots=True)
class Fit:
    """Sequences of one length: the bytes that one takes, and how many fit."""

    tokens: int
    n_bytes: int
    sequences: int | None


@dataclass(frozen=True, slots=True)
class RankNeed:
    """One rank's part of a plan: `layers` layers from `first_layer` on. Sizes are in bytes.

    `token` is for one position in all its layers, `cache` what is for pages.
    """

    rank: int
    stage: int
    first_layer: int
    layers: int
    embeddings: bool
    head: bool
    weights: int
    token: int
    cache: int | None


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory plan of a model. All sizes are in bytes, and None if they depend on an unknown amount of memory.

    `layout` says how many ranks share the model, `ranks` what each holds; `memory` is what each may fill: on a CPU they
    share that of the host. All other sizes are those of the rank that needs most, with the pages that every rank holds.

    `scheme` is a value of --quantize, `stored` what most projections become, `checkpoint` how a quantized checkpoint
    stores them, else empty. `step` estimates what a step of `step_tokens` of `step_sequences` takes beside weights and
    cache, on a GPU with its context. `graphs` estimates what the CUDA graphs hold beside that, `cache` is for pages.
    A step reads `read` bytes of the weights for one token: the memory's rate divided by them is the limit of its speed.
    `encoder` is the part of `weights` that the encoder of what it `encodes` takes ("images" or "audio"), `media` what
    the embeddings of `media_tokens` positions and the encoding of one item take; all are 0 for a model without.
    `adapter` is for a LoRA adapter of rank 16 on all projections, of which `adapters` may be in memory. The engine
    reserves memory for them only if it starts with one.
    `context` is the longest sequence by the model or by --max-model-len, `served` the longest that fits.
    """

    parameters: int
    scheme: str
    stored: str
    checkpoint: str
    dtype: str
    kv_dtype: str
    weights: int
    read: int
    encoder: int
    encodes: str
    media: int
    media_tokens: int
    token: int
    step: int
    step_tokens: int
    step_sequences: int
    graphs: int
    page_size: int
    adapter: int
    adapters: int
    context: int
    layout: str
    ranks: tuple[RankNeed, ...]
    pools: tuple[PoolNeed, ...]
    fits: tuple[Fit, ...]
    memory: int | None
    cache: int | None
    served: int | None

    @property
    def taken(self) -> int:
        """Return the bytes of weights, and those that the encoder stores and computes."""
        return self.weights + self.media


@dataclass(frozen=True, slots=True)
class _Rank:
    """The sizes of one rank: the fields are those of `MemoryPlan`. Its `need` has no cache yet."""

    need: RankNeed
    shard: Shard
    sizes: PoolSizes
    media: MediaSizes | None
    step: int
    graphs: int

    @property
    def taken(self) -> int:
        return self.need.weights + (self.media.n_bytes if self.media else 0)


class _Draft(NamedTuple):
    """The bytes of the weights that draft, and of the keys and values of a draft model for a position."""

    weights: int
    token: int


def make_plan(directory: Path, options: RunnerOptions, total: int | None) -> MemoryPlan:
    """Plan the model in `directory` on `options.device`, "cpu" or "cuda", with `total` bytes of memory.

    Each rank has a GPU of so much memory; on a CPU all ranks share it.
    It does not read weights. On a CPU it decides as the engine does on this machine. It assumes that a GPU computes in
    the model's own format.
    Raises ModelError for a configuration that is not supported, OptionError for a layout that does not fit.
    """
    own_config = read_config(directory, max_model_len=options.max_model_len)
    stored, own, summary = _stored(directory, own_config)
    decision = decide(own_config, stored, own, options, planned(options.device))
    config, scheme, dtype = decision.config, decision.scheme, decision.dtype
    context = options.max_model_len or config.max_position
    draft = _draft(decision, options, own)
    ranks = [_rank(decision, place, options, own, context, draft) for place in options.layout.places()]
    ranks[0].sizes.check_length(options.max_model_len)
    each = total // len(ranks) if total is not None and options.device == "cpu" else total
    caches, served = _caches(ranks, options, each, context)
    largest, cache = max(
        zip(ranks, caches, strict=True), key=lambda pair: pair[0].taken + pair[0].sizes.bytes_for(context)
    )
    sizes, media, specs = largest.sizes, largest.media, _specs(ranks, caches, served)
    return MemoryPlan(
        parameters=config.n_parameters,
        scheme=decision.chosen.quantize,
        stored=schemes.stored_as(scheme, dtype, own),
        checkpoint=summary,
        dtype=dtype,
        kv_dtype=decision.cache.name,
        weights=largest.need.weights,
        read=memory.read_bytes(largest.shard, scheme, dtype, own),
        encoder=encoder_bytes(sizes.config, scheme, dtype),
        encodes=media.format.what if media else "",
        media=media.n_bytes if media else 0,
        media_tokens=media.tokens if media else 0,
        token=largest.need.token,
        step=largest.step,
        step_tokens=sizes.max_step_tokens,
        step_sequences=sizes.max_sequences,
        graphs=largest.graphs,
        page_size=PAGE_SIZE,
        adapter=memory.adapter_bytes(config, scheme.adapter_dtype(dtype)),
        adapters=options.max_loras,
        context=context,
        layout=options.layout.name,
        ranks=tuple(replace(rank.need, cache=cache) for rank, cache in zip(ranks, caches, strict=True)),
        pools=tuple(_need(sizes, window, specs) for window in config.pool_windows),
        fits=tuple(_fit(sizes, n, specs, known=served is not None) for n in _lengths(context, served)),
        memory=each,
        cache=cache,
        served=served,
    )


def _rank(
    decision: Decision, place: RankPlace, options: RunnerOptions, own: OwnBits, context: int, draft: _Draft
) -> _Rank:
    shard, value_bytes, scheme = decision.shard(place), VALUE_BYTES[decision.activations], decision.scheme
    sizes = memory.pool_sizes(shard.config, options, options.device, decision.dtype, PAGE_SIZE, draft.token)
    need = RankNeed(
        rank=place.rank,
        stage=place.stage,
        first_layer=shard.layers.start,
        layers=len(shard.layers),
        embeddings=shard.keeps_embeddings(quantizes_head=scheme.compiled),
        head=place.is_last,
        weights=memory.weight_bytes(shard, scheme, decision.dtype, own) + draft.weights,
        token=sizes.token_bytes,
        cache=None,
    )
    media = media_sizes(shard.whole, options, value_bytes) if place.is_first else None
    step = sizes.step_bytes(value_bytes) + memory.CONTEXT_BYTES * (options.device == "cuda")
    captures = options.device == "cuda" and options.layout.size == 1
    graphs = sizes.graph_bytes(context, value_bytes) if captures else 0
    return _Rank(need, shard, sizes, media, step, graphs)


def _draft(decision: Decision, options: RunnerOptions, own: OwnBits) -> _Draft:
    """Plan the weights that draft: a copy of the model's own, or a draft model with keys and values of its own."""
    place = Layout().place(0)
    if decision.draft is not None:
        return _Draft(memory.draft_bytes(decision.shard(place), decision.draft, decision.dtype, own), 0)
    if options.draft_model is None:
        return _Draft(0, 0)
    directory = Path(options.draft_model)
    config = read_config(directory)
    stored, bits, _ = _stored(directory, config)
    chosen = decide(config, stored, bits, of_draft_model(options), planned(options.device))
    sizes = memory.pool_sizes(config, options, options.device, chosen.dtype, PAGE_SIZE)
    weights = memory.weight_bytes(chosen.shard(place), chosen.scheme, chosen.dtype, bits)
    return _Draft(weights, sizes.token_bytes)


def _caches(
    ranks: Sequence[_Rank], options: RunnerOptions, own: int | None, context: int
) -> tuple[list[int | None], int | None]:
    """Return the bytes for keys and values on each rank with `own` bytes of memory, and the longest sequence on all."""
    if own is None:
        return [None] * len(ranks), None
    caches = [_cache(options, own, rank.taken, rank.step + rank.graphs) for rank in ranks]
    served = min(
        min(context, rank.sizes.longest(cache, context * rank.sizes.position_bytes))
        for rank, cache in zip(ranks, caches, strict=True)
    )
    if served and options.device == "cpu" and options.cache_memory is None:
        caches = [min(cache, rank.sizes.most_useful(served)) for rank, cache in zip(ranks, caches, strict=True)]
    return list(caches), served


def _specs(ranks: Sequence[_Rank], caches: Sequence[int | None], served: int | None) -> tuple[PoolSpec, ...]:
    """Return the pages of each pool that every rank holds; none if no sequence fits."""
    pairs = zip(ranks, caches, strict=True)
    pools = [rank.sizes.pools(served, cache) for rank, cache in pairs if served and cache]
    return tuple(
        PoolSpec(of_window[0].window, min(spec.n_pages for spec in of_window)) for of_window in zip(*pools, strict=True)
    )


def _stored(directory: Path, config: ModelConfig) -> tuple[WeightKind, OwnBits, str]:
    """Return the kind of the checkpoint, the bits of its own weights, and the summary of its quantization.

    Without weights, as for a name on the hub, all projections but the head count as quantized.
    """
    if is_gguf(directory):
        index = open_gguf(directory).index
        return "blocks" if index.quantized else "floats", index.block_bits, ""
    quantization = read_quantization(directory)
    if quantization is None:
        return "floats", None, ""
    if shards := present_shards(directory):
        bits = own_bits(weight_parts(shards), quantization, tied_head=config.tied_head)
    else:
        bits = quantization.bits_with_head(config)
    return quantization.kind, bits, quantization.summary


def _lengths(context: int, served: int | None) -> list[int]:
    """Return lengths to plan for; the last is the context. The longest that fits, `served`, is one of them."""
    return sorted({length for length in (*LENGTHS, served) if length and length < context} | {context})


def _cache(options: RunnerOptions, total: int, taken: int, step: int) -> int:
    """Return the bytes for keys and values beside those `taken` by weights, media and a GPU's step and graphs."""
    if options.cache_memory is not None:
        return options.cache_memory
    if options.device == "cuda":
        return memory.gpu_budget(total, taken + step, options.gpu_memory_utilization)
    return memory.cpu_budget(None, total - taken, "this machine")


def _need(sizes: PoolSizes, window: int | None, specs: tuple[PoolSpec, ...]) -> PoolNeed:
    page_bytes = sizes.page_bytes(window)
    n_pages = next((spec.n_pages for spec in specs if spec.window == window), None)
    return PoolNeed(window, sizes.config.windows.count(window), page_bytes // PAGE_SIZE, page_bytes, n_pages)


def _fit(sizes: PoolSizes, length: int, specs: tuple[PoolSpec, ...], *, known: bool) -> Fit:
    fitting = min((spec.n_pages // sizes.pages(spec.window, length) for spec in specs), default=0)
    return Fit(length, sizes.bytes_for(length), fitting if known else None)
