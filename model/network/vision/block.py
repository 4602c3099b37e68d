"""A block of the image encoder: attention over all patches of one image, then a gated feed-forward."""

from torch import Tensor, nn
from torch.nn.functional import gelu

from model.attention.encoder import EncoderAttention
from model.config.vision import VisionConfig
from model.linear.base import RMSNorm
from model.linear.selection import make_linear
from model.network.feed_forward import FeedForward


class VisionAttention(nn.Module):
    """Attention without a mask. q, k and v are one projection."""

    def __init__(self, config: VisionConfig, scheme: str) -> None:
        super().__init__()
        self.n_heads, self.head_dim = config.n_heads, config.head_dim
        width = config.n_heads * config.head_dim
        self.wqkv = make_linear(config.dim, 3 * width, scheme=scheme)
        self.wo = make_linear(width, config.dim, scheme=scheme)


class GeluFeedForward(FeedForward):
    """`w2(gelu(w1 x) * w3 x)`, as transformers has it where a configuration does not name the activation."""

    def forward(self, x: Tensor, norm: RMSNorm, onto: Tensor) -> Tensor:  # type: ignore[override]
        """Add FeedForward(norm(x)) to `onto` in place. [n, dim] -> [n, dim]"""
        gate, up = self.w13(x, norm).chunk(2, dim=-1)
        return self.w2(gelu(gate).mul_(up), onto=onto)


class VisionBlock(nn.Module):
    """`h = x + attention(norm(x))`, then `h + feed_forward(norm(h))`.

    The two methods serve n patches of an image each, from `first` on: `project` has to be done for all of them before
    `complete`.
    """

    def __init__(self, config: VisionConfig, scheme: str) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.attention = VisionAttention(config, scheme)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)
        kind = GeluFeedForward if config.hidden_act == "gelu" else FeedForward
        self.feed_forward = kind(config.dim, config.hidden_dim, scheme)

    def project(self, x: Tensor, first: int, attention: EncoderAttention) -> None:
        """Store q, k and v of x [n, dim]."""
        own = self.attention
        attention.store(first, own.wqkv(x, self.attention_norm).view(len(x), 3 * own.n_heads, own.head_dim))

    def complete(self, x: Tensor, first: int, attention: EncoderAttention) -> Tensor:
        """Return the block's output for x [n, dim], a new tensor."""
        attended = attention.attend(first, len(x)).to(x.dtype)  # [n, heads, head_dim]
        h = self.attention.wo(attended.flatten(1), onto=x.clone())  # [n, dim]
        return self.feed_forward(h, self.ffn_norm, onto=h)
