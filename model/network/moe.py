"""Sparse mixture of experts (Mixtral, arXiv 2401.04088)."""

import torch
from torch import Tensor, nn

from model.kernels import cuda as triton
from model.kernels.cuda.layouts import DeviceWeights
from model.linear.base import RMSNorm
from model.linear.floats import Floats
from model.linear.schemes import SCHEMES
from model.linear.selection import make_linear
from model.network.feed_forward import FeedForward


def route(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Experts [T, k] and their weights [T, k] float32: softmax over the k greatest of logits [T, n_experts]."""
    chosen, experts = logits.topk(k, dim=-1)
    return experts, chosen.float().softmax(dim=-1)


class MoE(nn.Module):
    """A feed-forward of many experts: each token uses its `n_used` best, and the gate weighs their outputs."""

    def __init__(self, dim: int, hidden_dim: int, n_experts: int, n_used: int, scheme: str = "none") -> None:
        super().__init__()
        self.n_used = n_used
        self._exact = SCHEMES[scheme].bit_identical
        self._stacked: tuple[DeviceWeights, DeviceWeights] | None = None
        self.gate = make_linear(dim, n_experts)  # never quantized: it is small and decides everything
        self.experts = nn.ModuleList(FeedForward(dim, hidden_dim, scheme) for _ in range(n_experts))

    def reserve(self, dtype: torch.dtype, device: torch.device) -> None:
        """Allocate the weights of all experts in one piece, as the GPU's kernels need them."""
        w13, w2 = (self._stack(name, dtype, device) for name in ("w13", "w2"))
        self._stacked = w13, w2

    def _stack(self, name: str, dtype: torch.dtype, device: torch.device) -> DeviceWeights:
        parts: list[Floats] = [getattr(expert, name) for expert in self.experts]
        weights = parts[0].allocate((len(parts),), dtype, device)
        for i, part in enumerate(parts):
            part.assign_weights(weights[i])
        return weights

    def _scores(self, x: Tensor) -> Tensor:
        """The gate's logits [T, n_experts]. Their bits depend on no other row if those of the experts do not."""
        if not self._exact:
            return self.gate(x)
        weight: Tensor = self.gate.weight  # type: ignore[assignment]
        return torch.stack([(x * row).sum(dim=-1) for row in weight], dim=1)

    def forward(self, x: Tensor, norm: RMSNorm | None = None, onto: Tensor | None = None) -> Tensor:
        """MoE(norm(x)), or `onto` with it added in place. [T, dim] -> [T, dim]"""
        x = x if norm is None else norm(x)
        if self._stacked is not None and triton.serves(x):
            return self._grouped(x, *self._stacked, onto)
        experts, weights = route(self._scores(x), self.n_used)  # [T, k] each
        order = experts.flatten().argsort(stable=True)  # [T * k]: (token, choice) pairs, grouped by expert
        counts = experts.flatten().bincount(minlength=len(self.experts)).tolist()
        groups = x.index_select(0, order // self.n_used).split(counts)  # n_experts x [n, dim]
        results = torch.cat([expert(group) for expert, group in zip(self.experts, groups, strict=True) if len(group)])
        y = torch.empty_like(results)
        y[order] = results  # back to (token, choice) order
        weighted = y.unflatten(0, (-1, self.n_used)) * weights.to(x.dtype).unsqueeze(-1)  # [T, k, dim]
        y = weighted.sum(dim=1)  # [T, dim]
        return y if onto is None else onto.add_(y)

    def _grouped(self, x: Tensor, w13: DeviceWeights, w2: DeviceWeights, onto: Tensor | None) -> Tensor:
        """The same result on a GPU, from four kernels that never wait for the host."""
        from model.kernels.cuda import product, routing

        n_pairs = len(x) * self.n_used
        fixed = bool(self.gate.fixed)
        tile = product.tile_of(w13.layout, -(-n_pairs // len(self.experts)), fixed=fixed)
        assignment = routing.assign(self.gate(x), self.n_used, tile.rows)
        inner = product.grouped(x, w13, assignment.slots, assignment.experts, self.n_used, tile, n_pairs, gated=True)
        y = product.grouped(
            inner, w2, assignment.slots, assignment.experts, 1, tile, n_pairs, gated=False
        )  # [T * k, dim]
        return routing.join(y, assignment.shares, onto)
