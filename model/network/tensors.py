"""The tensors of a network: native name, shape, the rows of a parameter that it fills, and whether these rotate.

A rank's table has the shapes of its parts. Where one differs from that of the whole model, the ranks divide this axis.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import Tensor

from model.attention.rope import internal_order, rope_last
from model.checkpoint.names import WHISPER
from model.config.audio import AudioConfig
from model.config.latent import LatentConfig
from model.config.model import ModelConfig
from model.config.vision import VisionConfig
from model.network.audio.encoder import KERNEL
from model.sharding.shard import Shard, shard_of

EMBEDDINGS, HEAD = "tok_embeddings.weight", "output.weight"


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """The place of a checkpoint tensor: rows `first..first+shape[0]-1` of a parameter.

    The rows of q and k rotate, and their order may have to change: `rotates` is the size of a head, and of the part of
    it that rotates. That is the last part in latent attention, in adjacent pairs in all formats, else the first. A
    tensor with more than two dimensions becomes a matrix.
    """

    parameter: str
    first: int
    shape: tuple[int, ...]
    rotates: tuple[int, int] | None = None
    rotates_last: bool = False

    def order(self, n_rows: int, rotation: str) -> Tensor | None:
        """Return the numbers of a file's rows in the order of the network; None if they have it."""
        if self.rotates is None:
            return None
        return (
            rope_last(n_rows, *self.rotates) if self.rotates_last else internal_order(n_rows, *self.rotates, rotation)
        )


Places = Iterator[tuple[str, TensorPlace]]


def whole_shapes(shard: Shard) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor of the whole model, by its native name."""
    return {name: place.shape for name, place in places(shard_of(shard.whole))}


def elsewhere(shard: Shard) -> frozenset[str]:
    """Return the native names of the tensors of which only other ranks hold something."""
    return frozenset(whole_shapes(shard).keys() - dict(places(shard)).keys())


def own_part(shard: Shard, name: str, whole: Sequence[int], own: Sequence[int]) -> list[range | None]:
    """Return the rows and the columns that the rank holds, None for all, from the shapes of both.

    Ranks hold parts of one size, in order; where they outnumber the heads of keys, consecutive ones hold the same head,
    which their heads of queries share. Worked example: rank 3 of 4 holds rows 64..127 of two heads of 64.
    """
    if name in (EMBEDDINGS, HEAD):
        return [shard.vocab, None]
    n, rank = shard.place.layout.tensor, shard.place.tensor_rank
    firsts = [rank * size // n // part * part for size, part in zip(whole, own, strict=True)]
    parts = (range(first, first + part) for first, part in zip(firsts, own, strict=True))
    return [None if len(part) == size else part for part, size in zip(parts, whole[:2], strict=False)]


def places(shard: Shard) -> Places:
    """Yield every tensor of a checkpoint of which the shard holds a part, by native name, with the part's shape."""
    config, dim = shard.config, shard.config.dim
    if shard.has_embeddings:
        yield EMBEDDINGS, TensorPlace(EMBEDDINGS, 0, (len(shard.vocab), dim))
    for number, layer in enumerate(shard.layers):
        name, own = f"layers.{layer}", f"layers.{number}"
        yield from _attention_places(f"{name}.attention", f"{own}.attention", config)
        for norm in ("attention_norm.weight", "ffn_norm.weight"):
            yield f"{name}.{norm}", TensorPlace(f"{own}.{norm}", 0, (dim,))
        if config.is_sparse(number):
            yield from _expert_places(f"{name}.feed_forward", f"{own}.feed_forward", shard)
        else:
            yield from _feed_forward_places(f"{name}.feed_forward", f"{own}.feed_forward", dim, config.hidden_dim)
    if shard.place.is_last:
        yield "norm.weight", TensorPlace("norm.weight", 0, (dim,))
        if not config.tied_head:
            yield "output.weight", TensorPlace("output.weight", 0, (len(shard.vocab), dim))
    if config.vision is not None:
        yield from _vision_places(config.vision, dim)
    if config.audio is not None:
        yield from _audio_places(config.audio, dim)


def _attention_places(name: str, parameter: str, config: ModelConfig) -> Places:
    if config.latent is not None:
        return _latent_places(name, parameter, config, config.latent)
    n_rows = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    return _projection_places(name, parameter, config.dim, n_rows, (config.head_dim, config.rope.dim))


def _latent_places(name: str, parameter: str, config: ModelConfig, latent: LatentConfig) -> Places:
    rank, rope = latent.q_lora_rank, latent.qk_rope_head_dim
    queries = "wq" if rank is None else "wq_b"
    if rank is not None:
        yield f"{name}.wq_a.weight", TensorPlace(f"{parameter}.wq_a.weight", 0, (rank, config.dim))
        yield f"{name}.q_a_norm.weight", TensorPlace(f"{parameter}.q_a_norm.weight", 0, (rank,))
    shape = config.n_heads * latent.head_dim, rank or config.dim
    place = TensorPlace(f"{parameter}.{queries}.weight", 0, shape, (latent.head_dim, rope), rotates_last=True)
    yield f"{name}.{queries}.weight", place
    shape, key = (latent.cache_dim, config.dim), f"{parameter}.wkv_a_with_mqa.weight"
    yield f"{name}.wkv_a_with_mqa.weight", TensorPlace(key, 0, shape, (latent.cache_dim, rope), rotates_last=True)
    yield f"{name}.kv_a_norm.weight", TensorPlace(f"{parameter}.kv_a_norm.weight", 0, (latent.kv_lora_rank,))
    n_rows = config.n_heads * (latent.qk_nope_head_dim + latent.v_head_dim)
    yield f"{name}.wkv_b.weight", TensorPlace(f"{parameter}.wkv_b.weight", 0, (n_rows, latent.kv_lora_rank))
    yield f"{name}.wo.weight", TensorPlace(f"{parameter}.wo.weight", 0, (config.dim, config.attended_dim))


def _projection_places(
    name: str, parameter: str, dim: int, n_rows: tuple[int, int], rotates: tuple[int, int]
) -> Places:
    """Yield q, k, v and o of attention; `n_rows` are those of q, and of k and v."""
    q_rows, kv_rows = n_rows
    yield f"{name}.wq.weight", TensorPlace(f"{parameter}.wqkv.weight", 0, (q_rows, dim), rotates)
    yield f"{name}.wk.weight", TensorPlace(f"{parameter}.wqkv.weight", q_rows, (kv_rows, dim), rotates)
    yield f"{name}.wv.weight", TensorPlace(f"{parameter}.wqkv.weight", q_rows + kv_rows, (kv_rows, dim))
    yield f"{name}.wo.weight", TensorPlace(f"{parameter}.wo.weight", 0, (dim, q_rows))


def _expert_places(name: str, parameter: str, shard: Shard) -> Places:
    """Yield the gate, the experts that the shard holds, which the network counts from 0, and the shared ones."""
    config = shard.config
    yield f"{name}.gate.weight", TensorPlace(f"{parameter}.gate.weight", 0, (config.n_experts, config.dim))
    for number, expert in enumerate(shard.experts):
        experts = f"{name}.experts.{expert}", f"{parameter}.experts.{number}"
        yield from _feed_forward_places(*experts, config.dim, config.expert_dim)
    if config.shared_dim:
        shared = f"{name}.shared_experts", f"{parameter}.shared_experts"
        yield from _feed_forward_places(*shared, config.dim, config.shared_dim)


def _feed_forward_places(name: str, parameter: str, dim: int, hidden_dim: int) -> Places:
    yield f"{name}.w1.weight", TensorPlace(f"{parameter}.w13.weight", 0, (hidden_dim, dim))
    yield f"{name}.w3.weight", TensorPlace(f"{parameter}.w13.weight", hidden_dim, (hidden_dim, dim))
    yield f"{name}.w2.weight", TensorPlace(f"{parameter}.w2.weight", 0, (dim, hidden_dim))


def _vision_places(config: VisionConfig, dim: int) -> Places:
    """Yield the image encoder of a text model of `dim`."""
    patch = (config.dim, config.n_channels, config.patch_size, config.patch_size)
    yield "vision_encoder.patch_conv.weight", TensorPlace("encoder.patch_conv.weight", 0, patch)
    yield "vision_encoder.ln_pre.weight", TensorPlace("encoder.ln_pre.weight", 0, (config.dim,))
    width = config.n_heads * config.head_dim
    for layer in range(config.n_layers):
        name, own = f"vision_encoder.transformer.layers.{layer}", f"encoder.layers.{layer}"
        yield from _projection_places(
            f"{name}.attention", f"{own}.attention", config.dim, (width, width), (config.head_dim, config.head_dim)
        )
        for norm in ("attention_norm.weight", "ffn_norm.weight"):
            yield f"{name}.{norm}", TensorPlace(f"{own}.{norm}", 0, (config.dim,))
        yield from _feed_forward_places(f"{name}.feed_forward", f"{own}.feed_forward", config.dim, config.hidden_dim)
    yield from _adapter_places(config, dim)


def _adapter_places(config: VisionConfig, dim: int) -> Places:
    if config.adapter_norm:
        yield "pre_mm_projector_norm.weight", TensorPlace("encoder.adapter.norm.weight", 0, (config.dim,))
    if config.merge > 1:
        merge = (config.dim, config.merge**2 * config.dim)
        yield "patch_merger.merging_layer.weight", TensorPlace("encoder.adapter.merge.weight", 0, merge)
    for end, n_in in (("in", config.dim), ("out", dim)):
        name = f"vision_language_adapter.w_{end}"
        yield f"{name}.weight", TensorPlace(f"encoder.adapter.w_{end}.weight", 0, (dim, n_in))
        if config.adapter_bias:
            yield f"{name}.bias", TensorPlace(f"encoder.adapter.{end}_bias", 0, (dim,))


def _audio_places(config: AudioConfig, dim: int) -> Places:
    """Yield the audio encoder of a text model of `dim`. Keys have no bias."""
    own = config.dim
    for number, n_in in enumerate((config.n_mels, own)):
        yield from _biased(f"{WHISPER}.conv_layers.{number}", f"encoder.conv{number + 1}", (own, n_in, KERNEL))
    if config.stores_positions:
        yield f"{WHISPER}.positions", TensorPlace("encoder.positions", 0, (config.n_positions, own))
    for layer in range(config.n_layers):
        name, block = f"{WHISPER}.transformer.layers.{layer}", f"encoder.layers.{layer}"
        for norm in ("attention_norm", "ffn_norm"):
            yield from _norm(f"{name}.{norm}", f"{block}.{norm}", own)
        for number, letter in enumerate("qkv"):
            yield f"{name}.attention.w{letter}.weight", TensorPlace(f"{block}.wqkv.weight", number * own, (own, own))
        for number, letter in enumerate("qv"):
            yield f"{name}.attention.w{letter}.bias", TensorPlace(f"{block}.qv_bias", number * own, (own,))
        yield from _biased(f"{name}.attention.wo", f"{block}.wo", (own, own))
        yield from _biased(f"{name}.feed_forward.w1", f"{block}.w1", (config.hidden_dim, own))
        yield from _biased(f"{name}.feed_forward.w2", f"{block}.w2", (own, config.hidden_dim))
    yield from _norm(f"{WHISPER}.transformer.norm", "encoder.norm", own)
    for end, n_in in (("in", config.group * own), ("out", dim)):
        yield f"vision_language_adapter.w_{end}.weight", TensorPlace(f"encoder.w_{end}.weight", 0, (dim, n_in))


def _biased(name: str, parameter: str, shape: tuple[int, ...]) -> Places:
    yield f"{name}.weight", TensorPlace(f"{parameter}.product.weight", 0, shape)
    yield f"{name}.bias", TensorPlace(f"{parameter}.bias", 0, shape[:1])


def _norm(name: str, parameter: str, dim: int) -> Places:
    for part in ("weight", "bias"):
        yield f"{name}.{part}", TensorPlace(f"{parameter}.{part}", 0, (dim,))
