"""One Transformer for all families: pre-norm blocks of grouped-query or latent attention and SwiGLU, dense or sparse.

T is the number of new tokens of a step, of all sequences, packed without padding.
"""

from typing import Any

import torch
from torch import Tensor, nn

from model.attention.base import Attention
from model.attention.cache import LayerCache, PagePools
from model.attention.inputs import PackedInputs
from model.attention.rope import RopeRows, RopeTables
from model.config.model import ModelConfig
from model.kernels.cpu.functions import Kernels
from model.linear.base import RMSNorm
from model.linear.schemes import SCHEMES, of_encoder
from model.linear.selection import make_linear
from model.network import lora
from model.network.audio.encoder import AudioEncoder
from model.network.encoding import Encoder
from model.network.feed_forward import FeedForward
from model.network.group import Group
from model.network.latent import LatentAttention
from model.network.moe import MoE
from model.network.vision.encoder import ImageEncoder
from model.sharding.shard import Shard, shard_of


class SelfAttention(nn.Module):
    """Grouped-query attention. q, k and v are one projection."""

    def __init__(self, config: ModelConfig, scheme: str) -> None:
        super().__init__()
        self.n_heads = config.n_heads
        self.head_dim = config.head_dim
        n_rows = (config.n_heads + 2 * config.n_kv_heads) * config.head_dim
        self.wqkv = make_linear(config.dim, n_rows, scheme=scheme)
        self.wo = make_linear(config.n_heads * config.head_dim, config.dim, scheme=scheme)

    def forward(
        self,
        x: Tensor,
        norm: RMSNorm,
        rope: RopeRows,
        attention: Attention,
        cache: LayerCache,
        prepared: Any,
        uses: lora.LayerUses,
        onto: Tensor | None,
    ) -> Tensor:
        """Compute attention(norm(x)), or add it to `onto` in place. [T, dim] -> [T, dim]"""
        qkv = self.wqkv(x, norm, adapters=uses.get("wqkv"))
        qkv = qkv.view(len(x), -1, self.head_dim)  # [T, n_heads + 2 n_kv_heads, head_dim]
        attended = attention.attend(qkv, self.n_heads, rope, cache, prepared)  # [T, n_heads, head_dim]
        return self.wo(attended.flatten(1), onto=onto, adapters=uses.get("wo"))


class Block(nn.Module):
    """`h = x + attention(norm(x))`, then `h + feed_forward(norm(h))`.

    In a `group`, attention and feed-forward are each a part of the layer's, and the ranks of the stage add up theirs.
    `experts` are those that are here.
    """

    def __init__(
        self, config: ModelConfig, scheme: str, layer: int, experts: range, group: Group | None = None
    ) -> None:
        super().__init__()
        self._group = group
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.attention = (SelfAttention if config.latent is None else LatentAttention)(config, scheme)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)
        self.feed_forward: nn.Module = (
            MoE(
                *(config.dim, config.expert_dim, config.n_experts, config.n_experts_per_token, scheme),
                held=experts,
                shared_dim=config.shared_dim,
                routed_scale=config.routed_scale,
            )
            if config.is_sparse(layer)
            else FeedForward(config.dim, config.hidden_dim, scheme)
        )

    def forward(
        self,
        x: Tensor,
        rope: RopeRows,
        attention: Attention,
        cache: LayerCache,
        prepared: Any,
        uses: lora.LayerUses,
    ) -> Tensor:
        """Compute x [T, dim] after the block, in place."""
        onto = x if self._group is None else None
        y = self.attention(x, self.attention_norm, rope, attention, cache, prepared, uses, onto)
        x = self._joined(x, y)
        onto = x if self._group is None else None
        return self._joined(x, self.feed_forward(x, self.ffn_norm, onto, uses))

    def _joined(self, x: Tensor, y: Tensor) -> Tensor:
        """Add the sum of y over all ranks to x in place; without a group return y, which is this x already."""
        return y if self._group is None else x.add_(self._group.sum(y))


class Transformer(nn.Module):
    """The network from tokens to logits. Build it on the meta device; `weights.load` fills it.

    `encoder` is that of images or audio, None for a model of text. It attends by the compiled `kernels` of a CPU.
    With a `shard`, whose configuration is `config`, it is what one rank of the `group` holds: some layers, a part of
    each, and only in the first and the last stage embeddings and head. It `splits_layers` if it has parts of them.
    """

    def __init__(
        self,
        config: ModelConfig,
        scheme: str = "none",
        shard: Shard | None = None,
        group: Group | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.shard = shard_of(config) if shard is None else shard
        place, n_rows = self.shard.place, len(self.shard.vocab)
        self.group, self.splits_layers = group, place.layout.tensor > 1
        self.has_head = place.is_last
        ties = config.tied_head and not SCHEMES[scheme].compiled  # else the head is a quantized copy
        self.has_embeddings = self.shard.keeps_embeddings(quantizes_head=SCHEMES[scheme].compiled)
        if self.has_embeddings:
            self.tok_embeddings = nn.Embedding.from_pretrained(torch.empty(n_rows, config.dim))
        within = group if self.splits_layers else None
        self.layers = nn.ModuleList(
            Block(config, scheme, layer, self.shard.experts, within) for layer in range(config.n_layers)
        )
        if self.has_head:
            self.norm = RMSNorm(config.dim, config.norm_eps)
            head = scheme if SCHEMES[scheme].compiled else "none"
            self.output = make_linear(config.dim, n_rows, scheme=head)
            if ties:
                self.output.weight = self.tok_embeddings.weight
        self.encoder: Encoder | None = None
        own = of_encoder(SCHEMES[scheme]).name
        if config.vision is not None:
            self.encoder = ImageEncoder(config.vision, config.dim, config.norm_eps, own, kernels)
        elif config.audio is not None:
            self.encoder = AudioEncoder(config.audio, config.dim, own, kernels)

    @property
    def n_parameters(self) -> int:
        """Count the weights; a tied head counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of hidden states."""
        first: Block = self.layers[0]  # type: ignore[assignment]
        return first.attention_norm.weight.dtype

    def forward(
        self,
        inputs: PackedInputs,
        tables: RopeTables,
        attention: Attention,
        pools: PagePools,
        adapters: lora.StepAdapters | None = None,
    ) -> Tensor:
        """Compute hidden states [T, dim] after the last layer, before the last norm; write keys and values to `pools`.

        `tables` have max_model_len positions.
        """
        prepared = [attention.prepare(pool) for pool in inputs.pools]
        ropes = tables.rows(inputs.positions)
        x = self.receive(len(inputs.tokens))
        if x is None:
            x = self._embed(inputs)  # [T, dim]
        places = zip(self.layers, pools.layers, pools.pool_of_layer, strict=True)
        for number, (layer, cache, pool) in enumerate(places):
            uses = lora.NO_USES if adapters is None else adapters.layer(number)
            x = layer(x, ropes[pool], attention, cache, prepared[pool], uses)
        self.send(x)
        return x

    def receive(self, n_rows: int) -> Tensor | None:
        """Receive hidden states [n_rows, dim] of the stage before in a pipeline; None in the first stage."""
        if self.group is None or self.shard.place.is_first:
            return None
        return self.group.receive((n_rows, self.config.dim), self.dtype)

    def join(self, x: Tensor, part: Tensor) -> None:
        """Add to x the sum of the `part` [T, dim] of each rank that shares the layers, in place."""
        assert self.group is not None
        x.add_(self.group.sum(part))

    def send(self, x: Tensor) -> None:
        """Send hidden states [T, dim] to the next stage, if there is one: nobody may change them then."""
        if self.group is not None and not self.has_head:
            self.group.send(x)

    def _embed(self, inputs: PackedInputs) -> Tensor:
        """Return the embeddings of tokens, images and audio, [T, dim]."""
        x = self.look_up(inputs.tokens).to(self.dtype)
        if inputs.embedded is not None:
            rows, values = inputs.embedded
            x[rows] = values.to(x.dtype)
        return x

    def look_up(self, tokens: Tensor) -> Tensor:
        """Look up token embeddings, [T, dim]. Of ranks that share the table, one has a token's row, others add 0."""
        if self.group is None or not self.splits_layers:
            return self.tok_embeddings(tokens)
        own = self.shard.vocab
        elsewhere = (tokens < own.start) | (tokens >= own.stop)
        x = self.tok_embeddings((tokens - own.start).masked_fill_(elsewhere, 0))
        return self.group.sum(x.masked_fill_(elsewhere[:, None], 0))

    def logits(self, hidden: Tensor, adapters: lora.StepAdapters | None = None) -> Tensor:
        """Compute hidden states [N, dim], of the rows that need it only -> logits [N, vocab_size] float32.

        `adapters` are those of these rows. Of ranks that share the head the first has the logits of all; the others
        return their own columns.
        """
        y = self.output(hidden, self.norm, adapters=None if adapters is None else adapters.head)
        gathered = self.group.gather(y, self.shard.vocab_widths) if self.group is not None else None
        return (y if gathered is None else gathered).float()
