"""Projections. `make_linear` is their only constructor, so that a scheme of `quant/` can stand in for all of them."""

from model.linear import SCHEMES
from model.linear.base import Projection


def make_linear(n_in: int, n_out: int, *, scheme: str = "none") -> Projection:
    """A map [T, n_in] -> [T, n_out] without bias, its weights not there yet."""
    return SCHEMES[scheme](n_in, n_out)
