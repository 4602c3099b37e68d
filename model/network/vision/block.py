"""A block of the image encoder: attention over all patches of one image, then SwiGLU."""

from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from model.attention.rope import rotate
from model.linear.base import RMSNorm
from model.linear.selection import make_linear
from model.network.feed_forward import FeedForward
from model.vision_config import VisionConfig


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Each of q [n, heads, head_dim] attends to all keys and values [P, heads, head_dim]. -> [n, heads, head_dim]"""
    q, k, v = (part.transpose(0, 1)[None] for part in (q, k, v))  # [1, heads, n or P, head_dim] each
    return scaled_dot_product_attention(q, k, v)[0].transpose(0, 1)


class VisionAttention(nn.Module):
    """Attention without a mask. q, k and v are one projection."""

    def __init__(self, config: VisionConfig, scheme: str) -> None:
        super().__init__()
        self.n_heads, self.head_dim = config.n_heads, config.head_dim
        width = config.n_heads * config.head_dim
        self.wqkv = make_linear(config.dim, 3 * width, scheme=scheme)
        self.wo = make_linear(width, config.dim, scheme=scheme)


class VisionBlock(nn.Module):
    """`h = x + attention(norm(x))`, then `h + feed_forward(norm(h))`.

    The two methods serve some patches of an image each: `project` has to be done for all of them before `complete`.
    """

    def __init__(self, config: VisionConfig, scheme: str) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.dim, config.norm_eps)
        self.attention = VisionAttention(config, scheme)
        self.ffn_norm = RMSNorm(config.dim, config.norm_eps)
        self.feed_forward = FeedForward(config.dim, config.hidden_dim, scheme)

    def project(self, x: Tensor, rotations: Tensor) -> Tensor:
        """q, k and v of x [n, dim], q and k rotated: [n, 3, heads, head_dim]."""
        own = self.attention
        qkv = own.wqkv(x, self.attention_norm).view(len(x), 3 * own.n_heads, own.head_dim)
        qkv[:, : 2 * own.n_heads] = rotate(qkv[:, : 2 * own.n_heads], rotations)
        return qkv.view(len(x), 3, own.n_heads, own.head_dim)

    def complete(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The block's output for x [n, dim] with its q [n, heads, head_dim] and all k and v [P, heads, head_dim]."""
        h = self.attention.wo(attend(q, k, v).flatten(1), onto=x.clone())  # [n, dim]
        return self.feed_forward(h, self.ffn_norm, onto=h)
