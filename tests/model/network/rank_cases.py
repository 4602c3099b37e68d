"""What the ranks of a test compute: functions of their group, each called on every rank."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from model.attention import choose
from model.batch import StepBatch
from model.checkpoint.open import Checkpoint, open_checkpoint
from model.config.model import ModelConfig
from model.kernels.cpu import native
from model.linear.schemes import SCHEMES
from model.network import weights
from model.network.group import Group
from model.network.tensors import elsewhere
from model.network.transformer import Transformer
from model.sharding.shard import shard_of
from model.step.packing import pack
from tests.model.driving import Driver, checkpoint


def rank_model(group: Group, source: Path | Checkpoint, scheme: str) -> Transformer:
    """What this rank holds of a model, as `driving.loaded`."""
    opened = open_checkpoint(source) if isinstance(source, Path) else source
    shard = shard_of(opened.config, group.place)
    with torch.device("meta"):
        model = Transformer(shard.config, scheme, shard, group)
    tensors = opened.tensors(elsewhere(shard))
    weights.load(model, shard, opened.rotation, tensors, torch.float32, group.device, lambda _: None)
    return model.eval()


def driver(group: Group, source: Path | Checkpoint, scheme: str = "none") -> Driver:
    attention = choose("auto", group.device, kernels=native.kernels())[1]
    made = Driver(rank_model(group, source, scheme), attention, shuffle=0)
    if SCHEMES[scheme].compiled:
        made.compile()
    return made


def sums(group: Group, parts: list[Tensor]) -> Tensor:
    """The sum of a part for each rank."""
    return group.sum(parts[group.place.tensor_rank].clone())


def logits(group: Group, source: Path, tokens: Sequence[int], chunks: Sequence[int | None]) -> list[Tensor]:
    """Logits [n, vocab_size] of the tokens, once for each size of a chunk."""
    network = driver(group, source)
    return [network.whole(tokens, chunk) for chunk in chunks]


def in_company(group: Group, config: ModelConfig, scheme: str, tokens: Sequence[int]) -> list[Tensor]:
    """Logits [n, vocab_size] of the tokens at random weights: at once, in chunks, and packed with another sequence."""
    network = driver(group, checkpoint(config), scheme)
    found = [network.whole(tokens, chunk) for chunk in (None, 1, 7)]
    own, other = network.start(tokens), network.start(tokens[::-1])
    parts = [network.step([(other, 2), (own, 5)])[1], network.step([(own, len(tokens) - 5), (other, 9)])[0]]
    return [each.cpu() for each in (*found, torch.cat(parts))]


def gathered(group: Group, logits: Tensor, widths: Sequence[int]) -> Tensor | None:
    """Logits [N, vocab_size] of which this rank has its columns; None on a rank that does not sample."""
    return group.gather(logits.split(list(widths), dim=1)[group.place.tensor_rank], widths)


@torch.inference_mode()
def with_embeddings(group: Group, config: ModelConfig, tokens: Sequence[int], media: tuple[Tensor, Tensor]) -> Any:
    """Hidden states of the tokens, with the embeddings of an image in some rows: in one call, and layer by layer."""
    network = driver(group, checkpoint(config), "int8")
    item = network._slice(network.start(tokens), len(tokens))
    assert network.compiled is not None
    whole, _ = network.compiled.step([item], [0], None, (), media)
    inputs = pack(StepBatch((item,)), network.attention.page_size, network.windows, network.device)
    inputs = replace(inputs, embedded=media)
    return whole, network.model(inputs, network.tables, network.attention, network.pools)
