"""What the ranks of a test compute: functions of their group, each called on every rank."""

from pathlib import Path

import torch
from torch import Tensor

from model.attention import choose
from model.checkpoint.open import Checkpoint, open_checkpoint
from model.network import weights
from model.network.group import Group
from model.network.transformer import Transformer
from model.sharding.shard import shard_of
from tests.model.driving import CPU, Driver


def rank_model(group: Group, source: Path | Checkpoint, scheme: str = "none") -> Transformer:
    """What this rank holds of a model."""
    opened = open_checkpoint(source) if isinstance(source, Path) else source
    shard = shard_of(opened.config, group.place)
    with torch.device("meta"):
        model = Transformer(shard.config, scheme, shard, group)
    tensors = opened.tensors(weights.elsewhere(shard))
    weights.load(model, shard, opened.rotation, tensors, torch.float32, CPU, lambda _: None)
    return model.eval()


def sums(group: Group, parts: list[Tensor]) -> Tensor:
    """The sum of a part for each rank."""
    return group.sum(parts[group.place.tensor_rank].clone())


def logits(
    group: Group, source: Path | Checkpoint, scheme: str, tokens: list[int], chunks: list[int | None]
) -> list[Tensor]:
    """Logits [n, vocab_size] of the tokens, once for each size of a chunk; without a head, none."""
    model = rank_model(group, source, scheme)
    return [Driver(model, choose("auto", CPU)[1], shuffle=0).whole(tokens, chunk) for chunk in chunks]
