"""Sparse mixture of experts (Mixtral, arXiv 2401.04088), also with shared experts (DeepSeekMoE, arXiv 2401.06066)."""

import torch
from torch import Tensor, nn
from torch.nn.functional import grouped_mm

from model.kernels import cuda as triton
from model.kernels.cpu import native
from model.kernels.cpu.packed import PackedExperts, PackedWeights
from model.kernels.cuda.layouts import DeviceWeights
from model.linear.base import RMSNorm
from model.linear.floats import Floats
from model.linear.schemes import SCHEMES
from model.linear.selection import make_linear
from model.network import lora
from model.network.feed_forward import FeedForward


def route(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Experts [T, k] and their weights [T, k] float32: softmax over the k greatest of logits [T, n_experts].

    Softmax over all experts, renormalised over the k greatest, gives the same weights.
    """
    chosen, experts = logits.topk(k, dim=-1)
    return experts, chosen.float().softmax(dim=-1)


def multiplies_groups(x: Tensor, weights: DeviceWeights) -> bool:
    """Whether PyTorch multiplies such experts on the GPU without waiting for the host.

    It does so in bfloat16 on compute capability 9 and 10. Elsewhere it copies the ends of the groups to the host.
    """
    plain = weights.layout == "plain" and x.dtype is torch.bfloat16
    return plain and x.is_cuda and torch.cuda.get_device_capability(x.device)[0] in (9, 10)


class MoE(nn.Module):
    """A feed-forward of many experts: each token uses its `n_used` best, and the gate weighs their outputs.

    The weights are multiplied by `routed_scale`. With a `shared_dim`, shared experts of this hidden size serve every
    token. A rank may hold only the experts `held`: the outputs of the others are left out.
    """

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
        self._exact = SCHEMES[scheme].bit_identical
        self._kernels = native.kernels() if SCHEMES[scheme].compiled else None
        self._packed: PackedExperts | None = None
        self._alike = True
        self.stacked: tuple[DeviceWeights, DeviceWeights] | None = None
        self.gate = make_linear(dim, n_experts)  # never quantized: it is small and decides everything
        self.experts = nn.ModuleList(FeedForward(dim, hidden_dim, scheme) for _ in self._held)
        self.shared_experts = FeedForward(dim, shared_dim, scheme) if shared_dim else None

    def reserve(self, dtype: torch.dtype, device: torch.device) -> None:
        """Allocate the weights of all experts in one piece, as the GPU's kernels need them."""
        w13, w2 = (self._stack(name, dtype, device) for name in ("w13", "w2"))
        self.stacked = w13, w2

    def _stack(self, name: str, dtype: torch.dtype, device: torch.device) -> DeviceWeights:
        parts: list[Floats] = [getattr(expert, name) for expert in self.experts]
        weights = parts[0].allocate((len(parts),), dtype, device)
        for i, part in enumerate(parts):
            part.assign_weights(weights[i])
        return weights

    @property
    def packed(self) -> PackedExperts | None:
        """The loaded weights for the compiled kernels; None where these do not serve or experts differ in layout."""
        if self._packed is None and self._alike and self._kernels is not None:
            self._packed = self._pack()
        return self._packed

    def _pack(self) -> PackedExperts | None:
        experts = [pair for expert in self.experts if (pair := _packed(expert))]  # type: ignore[arg-type]
        shared = None if self.shared_experts is None else _packed(self.shared_experts)
        if len(experts) < len(self.experts) or (shared is None) != (self.shared_experts is None):
            return None  # they are not loaded yet
        self._alike = len({(w13.record.format, w2.record.format) for w13, w2 in experts}) == 1
        if not self._alike:
            return None
        gate: Tensor = self.gate.weight  # type: ignore[assignment]
        elsewhere = self._held.start, self.n_experts - self._held.stop
        places = [*[None] * elsewhere[0], *experts, *[None] * elsewhere[1]]
        return PackedExperts(gate, places, shared, self.n_used, self.routed_scale)

    def _scores(self, x: Tensor) -> Tensor:
        """The gate's logits [T, n_experts]. Their bits depend on no other row if those of the experts do not."""
        if not self._exact:
            return self.gate(x)
        weight: Tensor = self.gate.weight  # type: ignore[assignment]
        return torch.stack([(x * row).sum(dim=-1) for row in weight], dim=1)

    def forward(
        self,
        x: Tensor,
        norm: RMSNorm | None = None,
        onto: Tensor | None = None,
        uses: lora.LayerUses = lora.NO_USES,
    ) -> Tensor:
        """MoE(norm(x)), or `onto` with it added in place. [T, dim] -> [T, dim]. No adapter changes experts."""
        packed = self.packed
        if packed is not None and self._kernels is not None:
            scale, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
            target = torch.zeros_like(x) if onto is None else onto
            return self._kernels.experts(packed, x, norm=scale, eps=eps, onto=target)
        x = x.clone() if norm is None else norm(x)  # `onto` may be x
        if self.stacked is not None and triton.serves(x):
            y = self._grouped(x, *self.stacked, onto)
        else:
            y = self._one_by_one(x)
            y = y if onto is None else onto.add_(y)
        return y if self.shared_experts is None else self.shared_experts(x, onto=y)

    def _one_by_one(self, x: Tensor) -> Tensor:
        """The weighted sum of the chosen experts, computed one expert after another."""
        experts, weights = route(self._scores(x), self.n_used)  # [T, k] each
        order = experts.flatten().argsort(stable=True)  # [T * k]: (token, choice) pairs, grouped by expert
        counts = experts.flatten().bincount(minlength=self.n_experts)
        groups = x.index_select(0, order // self.n_used).split(counts.tolist())  # n_experts x [n, dim]
        results = torch.cat([self._expert(number, group) for number, group in enumerate(groups) if len(group)])
        y = torch.empty_like(results)
        y[order] = results  # back to (token, choice) order
        weights = (weights * self.routed_scale).to(x.dtype)
        return (y.unflatten(0, (-1, self.n_used)) * weights.unsqueeze(-1)).sum(dim=1)  # [T, dim]

    def _expert(self, number: int, x: Tensor) -> Tensor:
        """Expert `number` of the model over x [n, dim]; zeros for one that is not here."""
        if number not in self._held:
            return torch.zeros_like(x)
        y: Tensor = self.experts[number - self._held.start](x)
        return y

    def _grouped(self, x: Tensor, w13: DeviceWeights, w2: DeviceWeights, onto: Tensor | None) -> Tensor:
        """The same on a GPU, added to `onto`, from four kernels that never wait for the host."""
        from model.kernels.cuda import product, routing

        n_pairs = len(x) * self.n_used
        fixed = bool(self.gate.fixed)
        tile = product.tile_of(w13.layout, -(-n_pairs // self.n_experts), fixed=fixed)
        assignment = routing.assign(self.gate(x), self.n_used, tile.rows, self.routed_scale)
        some = len(self.experts) < self.n_experts
        if not fixed and not some and tile.rows == product.MOST_ROWS and multiplies_groups(x, w13):
            y = self._in_groups(x, w13.values, w2.values, assignment.slots, assignment.ends)
            return routing.join(y, assignment.shares, onto, assignment.places)
        slots, experts = assignment.slots, self._here(assignment.experts)
        inner = product.grouped(x, w13, slots, experts, self.n_used, tile, n_pairs, gated=True)
        y = product.grouped(inner, w2, slots, experts, 1, tile, n_pairs, gated=False, some=some)  # [T * k, dim]
        return routing.join(y, assignment.shares, onto)

    def _in_groups(self, x: Tensor, w13: Tensor, w2: Tensor, slots: Tensor, ends: Tensor) -> Tensor:
        """The outputs of all slots, [n, dim], by PyTorch. Slots without a pair compute what nobody reads."""
        pairs = slots.clamp(0, len(x) * self.n_used - 1)  # slots after the last block hold anything
        both = grouped_mm(x[pairs // self.n_used], w13.mT, offs=ends)
        w13_of_one: Floats = self.experts[0].w13  # type: ignore[assignment]
        return grouped_mm(w13_of_one.gate(both), w2.mT, offs=ends)

    def _here(self, experts: Tensor) -> Tensor:
        """Numbers of experts of the model as those of this rank, -1 for one that is not here."""
        if len(self.experts) == self.n_experts:
            return experts
        elsewhere = (experts < self._held.start) | (experts >= self._held.stop)
        return (experts - self._held.start).masked_fill_(elsewhere, -1)


def _packed(part: FeedForward) -> tuple[PackedWeights, PackedWeights] | None:
    """w13 and w2 in the layout of the kernels; None if one has no such layout."""
    w13, w2 = part.w13.packed, part.w2.packed
    return None if w13 is None or w2 is None else (w13, w2)
