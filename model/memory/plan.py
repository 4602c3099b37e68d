"""How much memory a model takes, and how many sequences fit beside it, from its configuration. No torch, no weights."""

from dataclasses import dataclass
from pathlib import Path

from model.batch import PAGE_SIZE, PoolSpec
from model.checkpoint.configs.fields import present_shards
from model.checkpoint.families import read_config
from model.checkpoint.gguf.index import INDEX, read_index
from model.checkpoint.quantized.config import Kind, read_quantization
from model.checkpoint.quantized.parts import block_bits, stored_weights
from model.config import VALUE_BYTES, ModelConfig
from model.linear import schemes
from model.linear.schemes import cache_format
from model.memory import sizes as memory
from model.memory.images import image_sizes
from model.memory.sizes import PoolSizes
from model.options import RunnerOptions

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
class MemoryPlan:
    """The memory plan of a model. All sizes are in bytes, and None if they depend on an unknown amount of memory.

    `scheme` is a value of --quantize, `stored` what most projections become. `step` estimates what a step of
    `step_tokens` of `step_sequences` takes beside weights and cache, on a GPU with its context. `cache` is for pages.
    `encoder` is the part of `weights` that the image encoder takes, `images` what the embeddings of `image_tokens`
    positions and the encoding of an image take; all are 0 for a model without.
    `adapter` is for a LoRA adapter of rank 16 on all projections, of which `adapters` may be in memory. The engine
    reserves memory for them only if it starts with one.
    `context` is the longest sequence by the model or by --max-model-len, `served` the longest that fits.
    """

    parameters: int
    scheme: str
    stored: str
    dtype: str
    kv_dtype: str
    weights: int
    encoder: int
    images: int
    image_tokens: int
    token: int
    step: int
    step_tokens: int
    step_sequences: int
    page_size: int
    adapter: int
    adapters: int
    context: int
    pools: tuple[PoolNeed, ...]
    fits: tuple[Fit, ...]
    memory: int | None
    cache: int | None
    served: int | None

    @property
    def taken(self) -> int:
        """Bytes of weights and images."""
        return self.weights + self.images


def make_plan(directory: Path, options: RunnerOptions, total: int | None) -> MemoryPlan:
    """The plan of the model in `directory` on `options.device`, "cpu" or "cuda", with `total` bytes of memory.

    It does not read weights. It assumes that the device computes in the model's own format and that a CPU has compiled
    kernels.
    Raises ModelError for a configuration that is not supported.
    """
    config = read_config(directory, max_model_len=options.max_model_len).with_window(options.sliding_window)
    stored, own_bits = _stored(directory, config)
    kind = schemes.nearest(stored, options.device, config)
    chosen = schemes.choose(options.quantize, options.dtype, options.device, compiled=True, kind=kind)
    dtype = chosen.own_dtype(options.dtype) or config.dtype
    scheme = schemes.serving(chosen, dtype, options.device)
    on_gpu = options.device == "cuda"
    sizes = memory.pool_sizes(config, options, options.device, dtype, PAGE_SIZE)
    weights = memory.weight_bytes(config, scheme, dtype, own_bits)
    value_bytes = 4 if scheme.compiled else VALUE_BYTES[dtype]
    step = sizes.step_bytes(value_bytes) + memory.CONTEXT_BYTES * on_gpu
    images = image_sizes(config, options, value_bytes)
    taken = weights + (images.n_bytes if images else 0)
    sizes.check_length(options.max_model_len)
    context = options.max_model_len or config.max_position
    cache = None if total is None else _cache(options, total, taken, step)
    served = None if cache is None else min(context, sizes.longest(cache, context * sizes.position_bytes))
    if served and not on_gpu and options.cache_memory is None:
        cache = min(cache or 0, sizes.most_useful(served))
    specs = sizes.pools(served, cache) if served and cache else ()
    return MemoryPlan(
        parameters=config.n_parameters,
        scheme=chosen.quantize,
        stored=schemes.stored_as(scheme, dtype, own_bits),
        dtype=dtype,
        kv_dtype=cache_format(options.kv_dtype, dtype).name,
        weights=weights,
        encoder=memory.encoder_bytes(config, scheme, dtype),
        images=images.n_bytes if images else 0,
        image_tokens=images.tokens if images else 0,
        token=sum(sizes.page_bytes(window) for window in config.pool_windows) // PAGE_SIZE,
        step=step,
        step_tokens=sizes.max_step_tokens,
        step_sequences=sizes.max_sequences,
        page_size=PAGE_SIZE,
        adapter=memory.adapter_bytes(config, scheme.adapter_dtype(dtype)),
        adapters=options.max_loras,
        context=context,
        pools=tuple(_need(sizes, window, specs) for window in config.pool_windows),
        fits=tuple(_fit(sizes, n, specs, known=served is not None) for n in _lengths(context, served)),
        memory=total,
        cache=cache,
        served=served,
    )


def _stored(directory: Path, config: ModelConfig) -> tuple[Kind, float | None]:
    """The kind of the checkpoint, and the bits of a weight in its own blocks.

    Without weights, as for a name on the hub, all projections but the head count as quantized.
    """
    if (directory / INDEX).is_file():
        index = read_index(directory)
        return "blocks" if index.quantized else "floats", index.block_bits
    quantization = read_quantization(directory)
    if quantization is None:
        return "floats", None
    if not (shards := present_shards(directory)):
        return quantization.kind, quantization.bits_with_head(config)
    weights = stored_weights(shards)
    return quantization.kind, block_bits(weights, quantization, tied_head=config.tied_head)


def _lengths(context: int, served: int | None) -> list[int]:
    """Lengths to plan for; the last is the context. The longest that fits, `served`, is one of them."""
    return sorted({length for length in (*LENGTHS, served) if length and length < context} | {context})


def _cache(options: RunnerOptions, total: int, taken: int, step: int) -> int:
    """Bytes for keys and values beside the `taken` ones of weights and images, and on a GPU those of a step."""
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
