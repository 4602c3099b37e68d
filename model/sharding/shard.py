"""One rank's shard of a model: its layers, and the sizes of its part of them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from model.config.model import ModelConfig, StageConfig
from model.errors import OptionError
from model.sharding.layout import SINGLE, Layout, RankPlace
from model.sharding.stages import ALIKE, StoredBits, stages

VOCAB_MULTIPLE = 16
"""Rows of embeddings and head are split at multiples of this: the CPU's kernels store 16 outputs together."""
LARGEST_TENSOR = 64
"""Sizes up to this are named in the error about a size that does not fit."""


@dataclass(frozen=True, slots=True)
class Shard:
    """The part of the model `whole` that the rank at `place` holds.

    `layers` are its layers, by their numbers in the model. `config` has the sizes of its part: `n_layers` and `windows`
    are those of its layers, `n_heads`, `n_kv_heads`, `hidden_dim` and the size of experts are its share. `dim`,
    `vocab_size` and `n_experts` are those of the model. `vocab` are its rows of the embeddings and of the output head,
    `experts` the experts it holds.
    """

    place: RankPlace
    whole: ModelConfig
    config: ModelConfig
    layers: range
    vocab: range
    experts: range

    @property
    def vocab_widths(self) -> tuple[int, ...]:
        """Return the number of rows of the embeddings and of the output head that each rank of a stage holds."""
        n = self.place.layout.tensor
        return tuple(len(_vocab_part(self.whole.vocab_size, n, rank)) for rank in range(n))

    @property
    def has_embeddings(self) -> bool:
        """Return whether it needs the embeddings: in the first stage, and in the last for a tied head."""
        return self.place.is_first or (self.place.is_last and self.whole.tied_head)

    def keeps_embeddings(self, *, quantizes_head: bool) -> bool:
        """Return whether the embeddings stay in memory as they are. A tied head that is quantized is a copy."""
        return self.place.is_first or (self.has_embeddings and not quantizes_head)

    @property
    def n_table_parameters(self) -> int:
        """Count the weights in its part of the embeddings, or of the output head."""
        return len(self.vocab) * self.whole.dim

    @property
    def n_layer_parameters(self) -> int:
        """Count the weights in its part of its layers."""
        config, all_layers = self.config, range(len(self.layers))
        n_absent = config.n_experts - len(self.experts)
        absent = sum(map(config.is_sparse, all_layers)) * n_absent * 3 * config.dim * config.expert_dim
        return sum(map(config.layer_parameters, all_layers)) - absent


def shard_of(config: ModelConfig, place: RankPlace = SINGLE, bits: StoredBits = ALIKE) -> Shard:
    """Return the shard of a model for the rank at `place`, whose weights take `bits`: all ranks must give the same.

    Only which layers are in a stage depends on them. Raises OptionError for a layout that does not fit the model.
    """
    layout, rank = place.layout, place.tensor_rank
    check(config, layout)
    if layout.size == 1:
        whole = range(config.n_layers), range(config.vocab_size), range(config.n_experts)
        return Shard(place, config, config, *whole)
    n = layout.tensor
    bits = replace(bits, encoder=bits.encoder * n)  # each rank has it whole, and 1/n of all else
    layers = stages(config, layout.pipeline, bits)[place.stage]
    split = config.n_experts and not layout.experts
    own = replace(
        config,
        n_layers=len(layers),
        windows=config.windows[layers.start : layers.stop],
        n_heads=config.n_heads // n,
        n_kv_heads=max(1, config.n_kv_heads // n),
        hidden_dim=config.hidden_dim // n,
        expert_hidden_dim=config.expert_dim // n if split else config.expert_dim if config.n_experts else 0,
        n_shared_experts=config.n_shared_experts if split or rank == 0 else 0,
        stage=StageConfig(layers.start, config.pool_windows),
        vision=config.vision if place.is_first else None,
        audio=config.audio if place.is_first else None,
    )
    vocab = _vocab_part(config.vocab_size, n, rank)
    experts = _share(config.n_experts, n, rank) if layout.experts else range(config.n_experts)
    return Shard(place, config, own, layers, vocab, experts)


def check(config: ModelConfig, layout: Layout) -> None:
    """Raise OptionError, which names the sizes that fit, for a layout that does not fit the model."""
    if layout.pipeline > config.n_layers:
        raise OptionError(
            f"--pipeline-parallel-size {layout.pipeline} is more than the model's {config.n_layers} layers; "
            f"choose at most {config.n_layers}"
        )
    if layout.experts and not config.n_experts:
        raise OptionError("--expert-parallel needs a model with experts, this one has none")
    if layout.experts and layout.tensor == 1:
        raise OptionError("--expert-parallel needs --tensor-parallel-size of at least 2: these ranks share the experts")
    if reasons := list(_obstacles(config, layout.tensor, experts=layout.experts)):
        raise OptionError(
            f"--tensor-parallel-size {layout.tensor} does not divide {' and '.join(reasons)}; "
            f"choose one of: {', '.join(map(str, fitting(config, layout)))}"
        )


def fitting(config: ModelConfig, layout: Layout) -> list[int]:
    """Return the sizes --tensor-parallel-size that the model allows, up to LARGEST_TENSOR."""
    return [n for n in range(1, LARGEST_TENSOR + 1) if not any(_obstacles(config, n, experts=layout.experts))]


def _obstacles(config: ModelConfig, n: int, *, experts: bool) -> Iterator[str]:
    """Yield what n ranks cannot split evenly. Where ranks outnumber heads of keys, several hold the same head."""
    if config.n_heads % n:
        yield f"{config.n_heads} heads"
    if config.n_kv_heads % n and n % config.n_kv_heads:
        yield f"{config.n_kv_heads} heads of keys and values"
    if config.hidden_dim % n:
        yield f"hidden_dim {config.hidden_dim}"
    if config.n_experts and experts and config.n_experts % n:
        yield f"{config.n_experts} experts"
    if config.n_experts and not experts and config.expert_dim % n:
        yield f"the experts' hidden size {config.expert_dim}"
    if not all(_vocab_part(config.vocab_size, n, part) for part in range(n)):
        yield f"a vocabulary of {config.vocab_size} in parts of {VOCAB_MULTIPLE}"


def _vocab_part(vocab_size: int, n_parts: int, part: int) -> range:
    """Return rows of the embeddings. Worked example: 96 tokens are 6 times 16; four parts have 16, 32, 16 and 32."""
    n_units = -(-vocab_size // VOCAB_MULTIPLE)
    first, stop = (at * n_units // n_parts * VOCAB_MULTIPLE for at in (part, part + 1))
    return range(first, min(stop, vocab_size))


def _share(n_items: int, n_parts: int, part: int) -> range:
    size = n_items // n_parts
    return range(part * size, (part + 1) * size)
