"""The layers that join the image encoder to the text model: norm, merge of patches, linear, GELU, linear."""

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu

from model.config.vision import VisionConfig
from model.linear.base import RMSNorm
from model.linear.selection import make_linear


class Projector(nn.Module):
    """`w_out(gelu(w_in(merged(norm(x)))))`, with or without biases.

    The norm has the text model's `norm_eps`, as in transformers.
    """

    def __init__(self, config: VisionConfig, dim: int, norm_eps: float, scheme: str) -> None:
        super().__init__()
        self.norm = RMSNorm(config.dim, norm_eps) if config.adapter_norm else None
        merged = config.merge**2 * config.dim
        self.merge = make_linear(merged, config.dim, scheme=scheme) if config.merge > 1 else None
        self.w_in, self.w_out = (make_linear(n, dim, scheme=scheme) for n in (config.dim, dim))
        for name in ("in_bias", "out_bias"):
            self.register_parameter(name, nn.Parameter(torch.empty(dim)) if config.adapter_bias else None)

    def forward(self, x: Tensor) -> Tensor:
        """Compute x [n, merge * merge, dim], the patches of each token row by row -> [n, dim of the text model]."""
        y = x.flatten(0, 1)
        y = y if self.norm is None else self.norm(y)  # [n * merge * merge, dim]
        if self.merge is not None:  # the values of a channel are side by side
            y = self.merge(y.view(x.shape).transpose(1, 2).flatten(1))  # [n, dim]
        y = self.w_in(y)
        y = gelu(y if self.in_bias is None else y + self.in_bias)
        y = self.w_out(y)
        return y if self.out_bias is None else y + self.out_bias
