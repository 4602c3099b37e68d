"""What the ranks of a test compute: functions of their group, each called on every rank."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from model.attention import choose
from model.checkpoint.matrices import Matrix
from model.checkpoint.open import Checkpoint, open_checkpoint
from model.network import weights
from model.network.group import Group
from model.network.transformer import Transformer
from model.sharding.shard import Shard, shard_of
from tests.model.driving import CPU, Driver


def rank_model(group: Group, source: Path | Checkpoint, scheme: str = "none") -> Transformer:
    """What this rank holds of a model."""
    opened = open_checkpoint(source) if isinstance(source, Path) else source
    shard = shard_of(opened.config, group.place)
    with torch.device("meta"):
        model = Transformer(shard.config, scheme, shard, group)
    config = replace(shard.config, vocab_size=len(shard.vocab))
    tensors = cut(opened.tensors(), shard)
    weights.load(model, config, opened.rotation, tensors, torch.float32, CPU, lambda _: None)
    return model.eval()


def cut(tensors: Iterable[tuple[str, Matrix]], shard: Shard) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in tensors:
        if (part := shard.part(name)) is not None:
            assert isinstance(tensor, Tensor)
            rows = tensor if part.rows is None else tensor[part.rows.start : part.rows.stop]
            yield name, rows if part.columns is None else rows[:, part.columns.start : part.columns.stop]


def sums(group: Group, parts: list[Tensor]) -> Tensor:
    """The sum of a part for each rank."""
    return group.sum(parts[group.place.tensor_rank].clone())


def logits(
    group: Group, source: Path | Checkpoint, scheme: str, tokens: list[int], chunks: list[int | None]
) -> list[Tensor]:
    """Logits [n, vocab_size] of the tokens, once for each size of a chunk; without a head, none."""
    model = rank_model(group, source, scheme)
    return [Driver(model, choose("auto", CPU)[1], shuffle=0).whole(tokens, chunk) for chunk in chunks]
