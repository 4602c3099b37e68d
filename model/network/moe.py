"""Sparse mixture of experts (Mixtral, arXiv 2401.04088), also with shared experts (DeepSeekMoE, arXiv 2401.06066)."""

from functools import cached_property

import torch
from torch import Tensor, nn

from model.kernels.cpu import native
from model.kernels.cpu.packed import PackedExperts, PackedWeights
from model.kernels.cuda.layouts import DeviceWeights
from model.linear import fp8
from model.linear.base import RMSNorm
from model.linear.floats import Floats
from model.linear.selection import make_linear
from model.network import lora
from model.network.feed_forward import FeedForward


def route(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return experts [T, k] and their weights [T, k] float32: softmax over the k greatest of logits [T, n_experts].

    Of equal logits the first is chosen, as in the compiled kernels. Softmax over all experts, renormalised over the k
    greatest, gives the same weights.
    """
    chosen, experts = (part[..., :k] for part in logits.sort(dim=-1, descending=True, stable=True))
    return experts, chosen.float().softmax(dim=-1)


class MoE(nn.Module):
    """A feed-forward of many experts: each token uses its `n_used` best, and the gate weighs their outputs.

    The weights are multiplied by `routed_scale`. With a `shared_dim`, shared experts of this hidden size serve every
    token. A rank may hold only the experts `held`: the outputs of the others are left out. Loading chooses the way: the
    weights are `stacked` for the kernels of a GPU, or `packed` for those of a CPU, else one expert is computed after
    another.
    """

    by_torch = False
    """Whether the weights stay apart on a GPU too, because a kernel failed the self-test. Loading sets it."""

    def __init__(
        self,
        dim: int,
        hidden_dim: int,
        n_experts: int,
        n_used: int,
        scheme: str = "none",
        *,
        held: range | None = None,
        shared_dim: int = 0,
        routed_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.n_experts, self.n_used, self.routed_scale = n_experts, n_used, routed_scale
        self._held = range(n_experts) if held is None else held
        self.stacked: tuple[DeviceWeights, DeviceWeights] | None = None
        self.gate = make_linear(dim, n_experts)  # never quantized: it is small and decides everything
        self.experts = nn.ModuleList(FeedForward(dim, hidden_dim, scheme) for _ in self._held)
        self.shared_experts = FeedForward(dim, shared_dim, scheme) if shared_dim else None

    def reserve(self, dtype: torch.dtype, device: torch.device) -> None:
        """Allocate the weights of all experts in one piece, for the GPU's kernels."""
        w13, w2 = (self._stack(name, dtype, device) for name in ("w13", "w2"))
        self.stacked = w13, w2

    def _stack(self, name: str, dtype: torch.dtype, device: torch.device) -> DeviceWeights:
        parts: list[Floats] = [getattr(expert, name) for expert in self.experts]
        weights = parts[0].allocate((len(parts),), dtype, device)
        for i, part in enumerate(parts):
            part.assign_weights(weights[i])
        return weights

    @cached_property
    def packed(self) -> PackedExperts | None:
        """Return the weights, once they are loaded, for the compiled kernels; None where these do not serve."""
        pairs = [_packed(expert) for expert in self.experts]  # type: ignore[arg-type]
        shared = None if self.shared_experts is None else _packed(self.shared_experts)
        if None in pairs:
            return None
        gate: Tensor = self.gate.weight  # type: ignore[assignment]
        before, after = self._held.start, self.n_experts - self._held.stop
        return PackedExperts(gate, [*[None] * before, *pairs, *[None] * after], shared, self.n_used, self.routed_scale)

    def forward(
        self,
        x: Tensor,
        norm: RMSNorm | None = None,
        onto: Tensor | None = None,
        uses: lora.LayerUses = lora.NO_USES,
    ) -> Tensor:
        """Compute MoE(norm(x)), or add it to `onto` in place. [T, dim] -> [T, dim]. No adapter changes experts."""
        if self.packed is not None:
            scale, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
            target = torch.zeros_like(x) if onto is None else onto
            return native.needed().experts(self.packed, x, norm=scale, eps=eps, onto=target)
        x = x.clone() if norm is None else norm(x)  # `onto` may be x
        if self.stacked is not None:
            y = self._grouped(x, *self.stacked, onto)
        else:
            y = self._one_by_one(x)
            y = y if onto is None else onto.add_(y)
        return y if self.shared_experts is None else self.shared_experts(x, onto=y)

    def _one_by_one(self, x: Tensor) -> Tensor:
        """Compute the weighted sum of the chosen experts, one expert after another."""
        experts, weights = route(self.gate(x), self.n_used)  # [T, k] each
        order = experts.flatten().argsort(stable=True)  # [T * k]: (token, choice) pairs, grouped by expert
        counts = experts.flatten().bincount(minlength=self.n_experts)
        groups = x.index_select(0, order // self.n_used).split(counts.tolist())  # n_experts x [n, dim]
        results = torch.cat([self._expert(number, group) for number, group in enumerate(groups) if len(group)])
        y = torch.empty_like(results)
        y[order] = results  # back to (token, choice) order
        weights = (weights * self.routed_scale).to(x.dtype)
        return (y.unflatten(0, (-1, self.n_used)) * weights.unsqueeze(-1)).sum(dim=1)  # [T, dim]

    def _expert(self, number: int, x: Tensor) -> Tensor:
        """Compute expert `number` of the model over x [n, dim]; zeros for one that is not here."""
        if number not in self._held:
            return torch.zeros_like(x)
        y: Tensor = self.experts[number - self._held.start](x)
        return y

    def _grouped(self, x: Tensor, w13: DeviceWeights, w2: DeviceWeights, onto: Tensor | None) -> Tensor:
        """Compute the same on a GPU, added to `onto`, with four kernels that never wait for the host."""
        from model.kernels.cuda import product, routing

        n_pairs = len(x) * self.n_used
        fixed = bool(self.gate.fixed)
        tile = product.tile_of(w13.layout, -(-n_pairs // self.n_experts), fixed=fixed)
        assignment = routing.assign(self.gate(x), self.n_used, tile.rows, self.routed_scale)
        some = len(self.experts) < self.n_experts
        slots, experts = assignment.slots, self._here(assignment.experts)
        narrow = w13.layout == "fp8" and tile.rows > fp8.ROWS and fp8.multiplies(x)
        inner = product.grouped(x, w13, slots, experts, self.n_used, tile, n_pairs, gated=True, narrow=narrow)
        y = product.grouped(inner, w2, slots, experts, 1, tile, n_pairs, gated=False, some=some, narrow=narrow)
        return routing.join(y, assignment.shares, onto)

    def _here(self, experts: Tensor) -> Tensor:
        """Map the model's numbers of experts to this rank's, -1 for one that is not here."""
        if len(self.experts) == self.n_experts:
            return experts
        elsewhere = (experts < self._held.start) | (experts >= self._held.stop)
        return (experts - self._held.start).masked_fill_(elsewhere, -1)


def _packed(part: FeedForward) -> tuple[PackedWeights, PackedWeights] | None:
    w13, w2 = part.w13.packed, part.w2.packed
    return None if w13 is None or w2 is None else (w13, w2)
