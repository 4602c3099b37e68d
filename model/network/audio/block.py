"""A block of the audio encoder: attention over all positions of a chunk, then a feed-forward, both with biases."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm

from model.attention.encoder import EncoderAttention
from model.config.audio import AudioConfig
from model.linear.selection import make_linear


class Biased(nn.Module):
    """A projection and its bias."""

    def __init__(self, n_in: int, n_out: int, scheme: str) -> None:
        super().__init__()
        self.product = make_linear(n_in, n_out, scheme=scheme)
        self.bias = nn.Parameter(torch.empty(n_out))

    def forward(self, x: Tensor) -> Tensor:
        """Compute [n, n_in] -> [n, n_out]."""
        return self.product(x) + self.bias


class LayerNorm(nn.Module):
    """`(x - mean) / sqrt(variance + eps) * weight + bias` in float32, cast back."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight, self.bias = (nn.Parameter(torch.empty(dim)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return layer_norm(x.float(), x.shape[-1:], self.weight.float(), self.bias.float(), self.eps).to(x.dtype)


class AudioBlock(nn.Module):
    """`h = x + attention(norm(x))`, then `h + w2 gelu(w1 norm(h))`.

    The two methods serve n positions each, as those of `VisionBlock`.
    """

    def __init__(self, config: AudioConfig, scheme: str) -> None:
        super().__init__()
        self.n_heads, self.head_dim = config.n_heads, config.head_dim
        self.attention_norm, self.ffn_norm = (LayerNorm(config.dim, config.norm_eps) for _ in range(2))
        self.wqkv = make_linear(config.dim, 3 * config.dim, scheme=scheme)
        self.qv_bias = nn.Parameter(torch.empty(2 * config.dim))  # keys have none
        self.wo = Biased(config.dim, config.dim, scheme)
        self.w1 = Biased(config.dim, config.hidden_dim, scheme)
        self.w2 = Biased(config.hidden_dim, config.dim, scheme)

    def project(self, x: Tensor, first: int, attention: EncoderAttention) -> None:
        """Store q, k and v of x [n, dim]."""
        qkv, dim = self.wqkv(self.attention_norm(x)), x.shape[1]
        qkv[:, :dim] += self.qv_bias[:dim]
        qkv[:, 2 * dim :] += self.qv_bias[dim:]
        attention.store(first, qkv.view(len(x), 3 * self.n_heads, self.head_dim))

    def complete(self, x: Tensor, first: int, attention: EncoderAttention) -> Tensor:
        """Return the block's output for x [n, dim], a new tensor."""
        h = x + self.wo(attention.attend(first, len(x)).flatten(1).to(x.dtype))  # [n, dim]
        return h + self.w2(gelu(self.w1(self.ffn_norm(h))))
