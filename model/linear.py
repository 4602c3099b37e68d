"""Projections. `make_linear` is their only constructor, so that a scheme of `quant/` can stand in for all of them."""

from torch import nn

from model import quant


def make_linear(n_in: int, n_out: int, *, bias: bool = False, scheme: str = "none") -> nn.Module:
    """A map [..., n_in] -> [..., n_out]. Its weight is [n_out, n_in], on the default device and dtype.

    Raises OptionError for an unknown scheme.
    """
    quant.check(scheme)
    return nn.Linear(n_in, n_out, bias=bias)
