"""A small step of attention, computed before the weights are read: kernels may not fit a GPU at a model's heads."""

from collections.abc import Sequence

import numpy as np
import torch

from model.attention.base import Attention
from model.attention.inputs import PoolInputs, Span
from model.attention.rope import RopeRows
from model.errors import OptionError, one_line
from model.latent_config import Heads
from model.machine.device import of_memory

LONG = 32
"""Tokens of the prompt in the step; the other slice has one token."""


def try_out(
    name: str,
    backend: Attention,
    heads: Sequence[int],
    dtype: torch.dtype,
    activations: torch.dtype,
    device: torch.device,
) -> None:
    """Compute a step with this backend for `heads`, as in `Heads`. Keys and values are in `dtype`.

    Raises OptionError, with the error or that the numbers are wrong, if it does not work; but errors of memory as they
    are.
    """
    try:
        means = _attend(backend, Heads(*heads), dtype, activations, device)
        right = torch.allclose(means, torch.ones_like(means), rtol=0.01)
        why = "its numbers are wrong"
    except OptionError:
        raise
    except Exception as error:  # from Triton, the compiler or the driver
        if of_memory(error):
            raise
        right, why = False, f"{type(error).__name__}: {one_line(error)}"
    if not right:
        raise OptionError(
            f"--attention {name} does not work here for {heads[0]} query heads and {heads[1]} key heads of {heads[2]} "
            f"({why}); use --attention sdpa"
        )


@torch.inference_mode()
def _attend(
    backend: Attention, heads: Heads, dtype: torch.dtype, activations: torch.dtype, device: torch.device
) -> torch.Tensor:
    """The means of values that are all 1, [LONG + 1, query heads, width], for two sequences that begin."""
    size, n_pages = backend.page_size, -(-LONG // backend.page_size)
    cache = backend.allocate((n_pages + 1, *heads.cache_shape), dtype, device)
    spans = (Span(0, LONG, 0, 0, 0), Span(LONG, 1, 0, 0, n_pages))
    inputs = PoolInputs(
        window=None,
        page_size=size,
        slots=torch.tensor([*range(LONG), n_pages * size], device=device),
        pages=torch.arange(n_pages + 1, device=device),
        table=torch.tensor(spans, device=device),
        numbers=np.array(spans),
    )
    qkv = torch.ones(LONG + 1, heads.n_heads + heads.n_stored, heads.head_dim, dtype=activations, device=device)
    rotations = torch.zeros(LONG + 1, 2, heads.rope_dim // 2, device=device)
    rotations[:, 0] = 1  # cosines: nothing rotates
    return backend.attend(qkv, heads.n_heads, RopeRows(rotations, None), cache, backend.prepare(inputs))
