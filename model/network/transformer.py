"""One Transformer for all families: pre-norm blocks of grouped-query attention and SwiGLU, dense or sparse.

T is the number of new tokens of a step, of all sequences, packed without padding.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from model.attention.base import Attention
from model.attention.cache import LayerCache, PagePools
from model.attention.inputs import PackedInputs
from model.attention.rope import RopeRows, RopeTables
from model.config import ModelConfig
from model.linear.base import RMSNorm
from model.linear.schemes import SCHEMES, of_images
from model.linear.selection import make_linear
from model.network import lora
from model.network.feed_forward import FeedForward
from model.network.moe import MoE
from model.network.vision.encoder import ImageEncoder
from model.sharding.shard import Shard


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
    ) -> Tensor:
        """x [T, dim] with attention(norm(x)) added in place."""
        qkv = lora.add(self.wqkv(x, norm), uses.get("wqkv", ()), self.wqkv, x, norm)
        qkv = qkv.view(len(x), -1, self.head_dim)  # [T, n_heads + 2 n_kv_heads, head_dim]
        attended = attention.attend_unrotated(qkv, self.n_heads, rope, cache, prepared)  # [T, n_heads, head_dim]
        attended = attended.flatten(1)
        return lora.add(self.wo(attended, onto=x), uses.get("wo", ()), self.wo, attended)  # [T, dim]


class Block(nn.Module):
    """`h = x + attention(norm(x))`, then `h + feed_forward(norm(h))`."""

    def __init__(self, config: ModelConfig, scheme: str, layer: int) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.attention = SelfAttention(config, scheme)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)
        self.feed_forward: nn.Module = (
            MoE(
                *(config.dim, config.expert_dim, config.n_experts, config.n_experts_per_token, scheme),
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
        x = self.attention(x, self.attention_norm, rope, attention, cache, prepared, uses)  # [T, dim], in place
        if isinstance(self.feed_forward, MoE):
            return self.feed_forward(x, self.ffn_norm, onto=x)  # [T, dim], in place
        return self.feed_forward(x, self.ffn_norm, onto=x, uses=uses)  # [T, dim], in place


class Transformer(nn.Module):
    """The network from tokens to logits. Build it on the meta device; `weights.load` fills it.

    `vision` is the image encoder, None for a model of text.
    With a `shard`, whose configuration is `config`, it is what one rank holds: some layers, and only in the first and
    the last stage embeddings and head.
    """

    def __init__(self, config: ModelConfig, scheme: str = "none", shard: Shard | None = None) -> None:
        super().__init__()
        self.config = config
        self.has_head = shard is None or shard.place.is_last
        n_rows = config.vocab_size if shard is None else len(shard.vocab)
        if shard is None or shard.has_embeddings:
            self.tok_embeddings = nn.Embedding.from_pretrained(torch.empty(n_rows, config.dim))
        self.layers = nn.ModuleList(Block(config, scheme, layer) for layer in range(config.n_layers))
        if self.has_head:
            self.norm = RMSNorm(config.dim, config.norm_eps)
            head = scheme if SCHEMES[scheme].compiled else "none"
            self.output = make_linear(config.dim, n_rows, scheme=head)
            if config.tied_head and head == "none":
                self.output.weight = self.tok_embeddings.weight
        self.vision: ImageEncoder | None = None
        if config.vision is not None:
            self.vision = ImageEncoder(config.vision, config.dim, config.norm_eps, of_images(SCHEMES[scheme]).name)

    @property
    def n_parameters(self) -> int:
        """Number of weights; a tied head counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(
        self,
        inputs: PackedInputs,
        tables: RopeTables,
        attention: Attention,
        pools: PagePools,
        fused: Callable[[Tensor, Sequence[RopeRows], list[Any], lora.StepAdapters | None], Tensor] | None = None,
        adapters: lora.StepAdapters | None = None,
        hidden: Tensor | None = None,
    ) -> Tensor:
        """Hidden states [T, dim] after the last layer, before the last norm; writes the new keys and values to `pools`.

        In a later stage of a pipeline `hidden` [T, dim] are those after the stage before; it may be overwritten.
        `tables` have max_model_len positions; `fused`, of fused.py, does all layers at once, with packed adapters.
        """
        prepared = [attention.prepare(pool) for pool in inputs.pools]
        ropes = tables.rows(inputs.positions)
        x = self._embed(inputs) if hidden is None else hidden  # [T, dim]
        if fused is not None:
            return fused(x, ropes, prepared, adapters)
        for number, (layer, cache, pool) in enumerate(zip(self.layers, pools.layers, pools.pool_of_layer, strict=True)):
            uses = lora.NO_USES if adapters is None else adapters.layer(number)
            x = layer(x, ropes[pool], attention, cache, prepared[pool], uses)
        return x

    def _embed(self, inputs: PackedInputs) -> Tensor:
        """Embeddings of tokens and images, [T, dim]."""
        first: Block = self.layers[0]  # type: ignore[assignment]
        x = self.tok_embeddings(inputs.tokens).to(first.attention_norm.weight.dtype)
        if inputs.image_rows is not None and inputs.image_values is not None:
            x[inputs.image_rows] = inputs.image_values.to(x.dtype)
        return x

    def logits(self, hidden: Tensor, adapters: lora.StepAdapters | None = None) -> Tensor:
        """Hidden states [N, dim], of the rows that need it only -> logits [N, vocab_size] float32.

        `adapters` are those of these rows.
        """
        y = self.output(hidden, self.norm)
        return (y if adapters is None else lora.add(y, adapters.head, self.output, hidden, self.norm)).float()
