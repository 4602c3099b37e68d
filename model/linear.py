"""Projections. `make_linear` is their only constructor, so that a scheme of `quant/` can stand in for all of them."""

from torch import nn

from model.quant import SCHEMES


def make_linear(n_in: int, n_out: int, *, scheme: str = "none") -> nn.Module:
    """A map [..., n_in] -> [..., n_out] without bias. Its weight is [n_out, n_in], on the default device and dtype."""
    return SCHEMES[scheme](n_in, n_out, bias=False)
