"""How many pages of keys and values the memory holds. No torch; all sizes in bytes."""

import math
from dataclasses import dataclass

from model.batch import GRAPH_ROWS, PREFIX_QUEUE_BYTES, SHORT, PoolSpec, max_pages
from model.checkpoint.quantized.config import Fp4, OwnBits
from model.config.cache_formats import cache_format
from model.config.model import VALUE_BYTES, ModelConfig
from model.decide import stored_bits
from model.errors import MemoryLack, OptionError, size
from model.linear.schemes import SCHEMES, Scheme
from model.options import CPU_SHARE, GPU_UTILIZATION, RunnerOptions
from model.sharding.shard import Shard

SPARE_SEQUENCES = 2
"""On a CPU pools hold by default this many times `max_sequences` full sequences: the spare pages serve prefix reuse."""
LOGIT_VALUES = 2**23
"""Logits that are computed at once, in float32 values."""
LOGIT_COPIES = 8
"""An estimate of how many float32 copies of them the sampler holds at once (it sorts by keys of 64 bits)."""
ADAPTER_RANK = 16
"""The rank of the LoRA adapters that plans tell of."""
CONTEXT_BYTES = 2**29
"""Roughly what a GPU's driver takes for a process."""
GRAPH_BYTES = 3 * 2**26
"""An estimate of what else CUDA graphs hold, 192 MiB:

- cuBLAS's workspace, 32 MiB;
- a piece of narrow weights in the model's format, or the sums of products that share channels, 64 MiB;
- the driver's nodes, 96 MiB.
"""
THREAD_BYTES = 2**19
"""Memory of a thread of the kernels, as in pool.h."""
LEAST_SUMS = 1024
"""Sums over a part of the keys that any GPU may hold at once, for few sequences. More sequences hold two each."""


def mebibytes(n_bytes: int) -> int:
    """Return the whole MiB that hold so many bytes."""
    return math.ceil(n_bytes / 2**20)


@dataclass(frozen=True, slots=True)
class PoolSizes:
    """Sizes of the page pools for one model and its options; `head_bytes` is of one head's key at one position.

    A draft model has `draft_bytes` for each position of the pool that keeps most.
    """

    config: ModelConfig
    page_size: int
    head_bytes: int
    max_step_tokens: int
    max_sequences: int
    draft_bytes: int = 0

    @property
    def token_bytes(self) -> int:
        """Return the bytes of a position in all pools."""
        return sum(map(self.page_bytes, self.config.pool_windows)) // self.page_size

    def page_bytes(self, window: int | None) -> int:
        """Return the bytes of one page in the pool of `window`: keys and values of all its layers."""
        own = self.config.windows.count(window) * self.config.heads.n_stored * self.head_bytes
        return self.page_size * (own + self.draft_bytes * (window == widest(self.config)))

    def pages(self, window: int | None, length: int) -> int:
        """Return the pages of the pool of `window` that one sequence of `length` tokens holds at most."""
        return max_pages(window, length, self.page_size, self.max_step_tokens)

    def bytes_for(self, length: int) -> int:
        """Return the bytes that one sequence of `length` tokens needs in all pools."""
        return sum(self.pages(window, length) * self.page_bytes(window) for window in self.config.pool_windows)

    @property
    def position_bytes(self) -> int:
        """Return the bytes of a position in `rope.RopeTables`, float32: cosines and sines of each RoPE, temperature."""
        tables = len(set(self.config.pool_ropes))
        factors = self.config.query_temperature is not None or self.config.latent is not None
        return 4 * (tables * self.config.heads.rope_dim + factors)

    def step_bytes(self, value_bytes: int) -> int:
        """Estimate the bytes of a step of `max_step_tokens` beside weights, keys and values: a block, and logits.

        An activation takes `value_bytes`.
        """
        rows = max(1, min(self.max_step_tokens, LOGIT_VALUES // self.config.vocab_size))
        return self.block_bytes(self.max_step_tokens, value_bytes) + rows * self.config.vocab_size * 4 * LOGIT_COPIES

    def block_bytes(self, n_rows: int, value_bytes: int) -> int:
        """Return the bytes of activations of the larger part of a block, attention or feed-forward, for `n_rows`."""
        config = self.config
        heads = config.heads
        attention = (heads.n_heads + heads.n_stored) * heads.head_dim + heads.n_heads * heads.value_dim
        if config.latent is not None:
            attention += heads.n_heads * config.head_dim + config.attended_dim
        sparse = config.n_experts_per_token * (3 * config.expert_dim + 2 * config.dim) + 3 * config.shared_dim
        feed_forward = max(sparse, 0 if all(map(config.is_sparse, range(config.n_layers))) else 3 * config.hidden_dim)
        return n_rows * (2 * config.dim + max(attention, feed_forward)) * value_bytes

    def graph_bytes(self, length: int, value_bytes: int) -> int:
        """Estimate the bytes of the CUDA graphs: inputs, logits of all sequences, the memory of the largest step.

        The inputs are `StaticInputs` of graphs.py, for sequences of up to `length` tokens. The step has its block, its
        logits in the model's format and in float32, and the sums of attention, which all layers of a window share.
        """
        config, n, n_pools = self.config, self.max_sequences, len(self.config.pool_windows)
        rows = max(n, min(GRAPH_ROWS, self.max_step_tokens))
        pages = sum(n * max_pages(window, length, self.page_size, 1) for window in config.pool_windows)
        pages += n_pools * (rows // self.page_size + n if rows > n else 0)
        inputs = 8 * ((2 + n_pools) * rows + (2 + 5 * n_pools) * n + pages)
        logits = n * config.vocab_size * (4 + 4 + value_bytes)
        busy = -(-LEAST_SUMS // config.heads.n_groups) * (SHORT if rows > n else 1)
        n_sums, of_head = max(LEAST_SUMS, busy, 2 * (rows + n)), (config.heads.value_dim + 2) * 4
        sums = n_pools * n_sums * (config.n_heads * of_head + 64)
        return inputs + logits + self.block_bytes(rows, value_bytes) + sums + GRAPH_BYTES

    def longest(self, budget: int, spare: int) -> int:
        """Return the longest sequence in tokens, up to the model's context; 0 if none fits.

        Its keys and values take at most `budget` bytes, its rotary positions at most `spare` bytes.
        """
        low, high = 0, min(self.config.max_position, spare // self.position_bytes)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.bytes_for(middle) <= budget else (low, middle - 1)
        return low

    def length(self, required: int | None, budget: int, spare: int) -> int:
        """Return the longest sequence to serve: `required`, or as long as the model and the memory allow.

        `budget` bytes serve keys and values, `spare` bytes are free beside them. Raises OptionError if `required`
        exceeds the model's context (unless every layer has a window) or the memory.
        """
        self.check_length(required)
        fits = self.longest(budget, spare)
        length = required or fits or 1
        self._check_positions(length, spare)
        needed = self.bytes_for(length)
        if needed <= budget:
            return length
        shorter = f"--max-model-len {fits} would fit, or " if fits else ""
        remedy = f"--cache-memory {mebibytes(needed)}MiB would do" if required else self._larger(needed, spare)
        raise MemoryLack(
            f"one sequence of {length} tokens needs {size(needed)} for keys and values, "
            f"the cache has {size(budget)}; {shorter}{remedy}"
        )

    def _larger(self, needed: int, spare: int) -> str:
        """Say what the least cache would hold, and which one holds the whole context."""
        least, whole = mebibytes(needed), mebibytes(self.bytes_for(self.config.max_position))
        return (
            f"--cache-memory {least}MiB would hold {self.longest(least * 2**20, spare)} tokens, "
            f"{whole}MiB the model's {self.config.max_position}"
        )

    def check_length(self, required: int | None) -> None:
        """Raise OptionError for a length that the model does not allow."""
        config = self.config
        if required is not None and required < 1:
            raise OptionError(f"--max-model-len must be at least 1, got {required}")
        if required is not None and required > config.max_position and None in config.pool_windows:
            raise OptionError(
                f"--max-model-len {required} is more than the model's context of {config.max_position} tokens; "
                f"choose at most {config.max_position}"
            )

    def _check_positions(self, length: int, spare: int) -> None:
        needed, fits = length * self.position_bytes, spare // self.position_bytes
        if needed > spare:
            raise MemoryLack(
                f"the rotary positions of {length} tokens need {size(needed)}, {size(spare)} are free beside weights "
                f"and cache; choose a {f'--max-model-len of at most {fits}' if fits else 'smaller --cache-memory'}"
            )

    def pools(self, length: int, budget: int) -> tuple[PoolSpec, ...]:
        """Split `budget` over the pools in proportion to what one sequence of `length` tokens needs in each."""
        times = max(1.0, budget / self.bytes_for(length))
        return tuple(PoolSpec(window, int(self.pages(window, length) * times)) for window in self.config.pool_windows)

    def most_useful(self, length: int) -> int:
        """Return the bytes of cache beyond which more hardly helps."""
        return self.bytes_for(length) * SPARE_SEQUENCES * self.max_sequences


def widest(config: ModelConfig) -> int | None:
    """Return the window of the pool that keeps most positions: None for all."""
    windows = config.pool_windows
    return None if None in windows else max(window for window in windows if window is not None)


def pool_sizes(
    config: ModelConfig, options: RunnerOptions, device: str, dtype: str, page_size: int, draft_bytes: int = 0
) -> PoolSizes:
    """Size the page pools on "cpu" or "cuda" for a model, or a rank of it, that computes in `dtype`."""
    max_sequences, max_step_tokens = options.step_limits(device)
    head_bytes = cache_format(options.kv_dtype, dtype).head_bytes(config.heads.head_dim)
    return PoolSizes(config, page_size, head_bytes, max_step_tokens, max_sequences, draft_bytes)


def weight_bytes(shard: Shard, scheme: Scheme, dtype: str, own_bits: OwnBits = None) -> int:
    """Return the bytes of a rank's weights at `stored_bits` a value. A quantized tied head is beside the embeddings."""
    config, has_head = shard.config, shard.place.is_last
    bits = stored_bits(config, scheme, dtype, own_bits)
    table_bits = bits.embeddings * shard.keeps_embeddings(quantizes_head=scheme.compiled)
    if has_head and (scheme.compiled or not config.tied_head):
        table_bits += bits.head
    layers = shard.n_layer_parameters + config.dim * has_head
    wide = 0.0  # what the compiled kernels have in bfloat16 in any scheme
    if config.latent is not None and scheme.compiled:
        others = scheme.bits(config.dim, None if isinstance(own_bits, Fp4) else own_bits) or 16
        wide = config.n_layers * config.latent.n_expanding(config.n_heads) * (16 - others)
    return math.ceil((layers * bits.layers + wide + shard.n_table_parameters * table_bits + bits.encoder) / 8)


def draft_bytes(shard: Shard, scheme: Scheme, dtype: str, own_bits: OwnBits = None) -> int:
    """Return the bytes of the copy of the weights in `scheme` that drafts: without embeddings, images and audio."""
    bits = stored_bits(shard.config, scheme, dtype, own_bits)
    beside = shard.n_table_parameters * bits.embeddings * shard.keeps_embeddings(quantizes_head=True) + bits.encoder
    return weight_bytes(shard, scheme, dtype, own_bits) - int(beside / 8)


def read_bytes(shard: Shard, scheme: Scheme, dtype: str, own_bits: OwnBits = None) -> int:
    """Return the bytes of weights that a step reads for a token: a rank's but embeddings, images, unused experts."""
    config, bits = shard.config, stored_bits(shard.config, scheme, dtype, own_bits)
    n_sparse = sum(map(config.is_sparse, range(config.n_layers)))
    unused = max(0, len(shard.experts) - config.n_experts_per_token) * n_sparse * 3 * config.dim * config.expert_dim
    unread = unused * (own_bits.bits if isinstance(own_bits, Fp4) and scheme.compiled else bits.layers)
    table = 0.0
    if shard.keeps_embeddings(quantizes_head=scheme.compiled) and (scheme.compiled or not config.tied_head):
        table = shard.n_table_parameters * bits.embeddings
    return weight_bytes(shard, scheme, dtype, own_bits) - int((unread + table + bits.encoder) / 8)


def adapter_bytes(config: ModelConfig, dtype: str) -> int:
    """Return the bytes of a LoRA adapter of `ADAPTER_RANK`, in `dtype`, for all projections but head and experts."""
    q, kv, dim = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim, config.dim
    attention = (dim + q) + 2 * (dim + kv) + (q + dim)
    if config.latent is not None:
        attention = config.attended_dim + dim
    n_dense = config.n_layers - sum(map(config.is_sparse, range(config.n_layers)))
    n_values = config.n_layers * attention + n_dense * 3 * (dim + config.hidden_dim)
    return ADAPTER_RANK * n_values * VALUE_BYTES[dtype]


def check_weights(shard: Shard, needed: int, stored: str, free: int, where: str) -> None:
    """Raise MemoryLack if weights of `needed` bytes, `stored` in a dtype or scheme, exceed the `free` bytes."""
    if needed <= free:
        return
    half = weight_bytes(shard, SCHEMES["none"], "bfloat16")
    hint = f"--dtype bfloat16 would need {size(half)}" if half < needed and half <= free else "choose a smaller model"
    raise MemoryLack(f"the weights need {size(needed)} in {stored}, {where} has {size(free)} free; {hint}")


def working_bytes(config: ModelConfig, n_threads: int, *, stores_prefixes: bool) -> int:
    """Return the bytes that an engine takes on a CPU beside weights, pages and steps.

    A thread has its own memory and a row of logits. Pages that wait for the disk are bounded.
    """
    return n_threads * (THREAD_BYTES + 4 * config.vocab_size) + PREFIX_QUEUE_BYTES * stores_prefixes


def cpu_budget(required: int | None, free: int, where: str, working: int = 0) -> int:
    """Return the bytes for keys and values: `required`, or a share of the bytes that are `free` after the weights.

    Raises MemoryLack if `required`, with `working` bytes beside it, is more than is free.
    """
    if required is None:
        return int(max(0, free) * CPU_SHARE)
    if required + working > free:
        beside = f", {size(working)} are for threads and pages on their way to the disk" if working else ""
        raise MemoryLack(
            f"--cache-memory {size(required)} is more than {where} has free after the weights ({size(free)}){beside}; "
            f"at most {max(0, free - working) // 2**20}MiB would fit"
        )
    return required


def check_step(cache: int, needed: int, free: int) -> None:
    """Raise MemoryLack if a cache of this size, which the user chose, leaves less than `needed` bytes of the GPU."""
    if cache + needed > free:
        raise MemoryLack(
            f"--cache-memory {size(cache)} leaves {size(free - cache)} of the GPU for a step and its CUDA graphs, "
            f"which need about {size(needed)}; {_most(free - needed)}lower --max-step-tokens or --max-sequences"
        )


def _most(n_bytes: int) -> str:
    return f"at most {n_bytes // 2**20}MiB would fit, or " if n_bytes >= 2**20 else ""


def gpu_budget(total: int, used: int, utilization: float | None) -> int:
    """Return the bytes for keys and values on a GPU of `total` bytes, of which all else takes `used`; at least 0."""
    return max(0, int(total * (GPU_UTILIZATION if utilization is None else utilization)) - used)
