"""The SwiGLU feed-forward."""

from torch import Tensor, nn

from model.linear.base import RMSNorm
from model.linear.selection import make_linear
from model.network import lora


class FeedForward(nn.Module):
    """SwiGLU block `w2(silu(w1 x) * w3 x)`; w1 and w3 are one projection."""

    def __init__(self, dim: int, hidden_dim: int, scheme: str = "none") -> None:
        super().__init__()
        self.w13 = make_linear(dim, 2 * hidden_dim, scheme=scheme)
        self.w2 = make_linear(hidden_dim, dim, scheme=scheme)

    def forward(
        self,
        x: Tensor,
        norm: RMSNorm | None = None,
        onto: Tensor | None = None,
        uses: lora.LayerUses = lora.NO_USES,
    ) -> Tensor:
        """Compute FeedForward(norm(x)), or add it to `onto` in place. [T, dim] -> [T, dim]"""
        inner = self.w13.gated(x, norm, uses.get("w13"))
        return self.w2(inner, onto=onto, adapters=uses.get("w2"))  # [T, dim]
