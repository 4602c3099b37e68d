"""PyTorch's varlen_attn over pages: its own flash attention reads keys and values where they lie.

A slice's visible pages, in logical order, are its keys: counted from the first position of the first of them, they end
with the slice's last token, so the causal mask, aligned to the last query and key, and the window are as they are
anywhere else in the sequence. Positions before the first visible key in that page lie outside the window.

The kernel takes pages of a multiple of 256 positions, heads of a multiple of 8 up to 256, and only num_splits=1: in
PyTorch 2.13 any other number gives wrong rows (github.com/pytorch/pytorch/issues/194167). So a decoding row is computed
by one block of threads a key head, and has the same bits beside any others.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from model.attention.base import Attention
from model.attention.cache import LayerCache
from model.attention.inputs import PoolInputs
from model.errors import OptionError

Kernel = Callable[..., Any]
NEEDED = {"window_size", "enable_gqa", "seqused_k", "block_table", "num_splits"}
MISSING = (
    f"needs a PyTorch whose varlen_attn takes block_table and num_splits (2.13 does), this one is {torch.__version__}"
)


def installed() -> Kernel | None:
    """varlen_attn, if it is there and takes all that is needed."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    kernel: Any = varlen_attn  # it gives a pair only if asked for more
    return kernel if inspect.signature(varlen_attn).parameters.keys() >= NEEDED else None


@dataclass(frozen=True, slots=True)
class Prepared:
    """Slots to write [T]; first rows of the slices and their end [S + 1], keys of each [S] and where they would begin
    and end if they were packed [S + 1], pages of each [S, B], all int32; the most queries and keys; the window."""

    slots: Tensor
    rows: Tensor
    used: Tensor
    ends: Tensor
    blocks: Tensor
    most_queries: int
    most_keys: int
    window: tuple[int, int]


class VarlenAttention(Attention):
    """On CUDA devices of compute capability 8.0 or more. `kernel` is varlen_attn."""

    page_size = 256
    dtypes = frozenset((torch.bfloat16, torch.float16))

    def __init__(self, kernel: Kernel | None = None) -> None:
        found = kernel or installed()
        if found is None:
            raise OptionError(f"--attention varlen {MISSING}")
        self._kernel = found

    @classmethod
    def obstacle(cls, device: torch.device, dtype: torch.dtype) -> str | None:
        kernel = installed()
        if kernel is None:
            return MISSING
        if device.type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
            return "needs a CUDA device of compute capability 8.0 or more"
        return super().obstacle(device, dtype) or try_out(kernel, device, dtype)

    def prepare(self, inputs: PoolInputs) -> Prepared:
        table, spans, size = inputs.table, inputs.spans, self.page_size
        row, n_queries, start, first_key, page = table.unbind(1)  # [S] each
        used = start + n_queries - first_key + first_key % size
        n_blocks = max(span.n_pages for span in spans)
        blocks = page[:, None] + torch.arange(n_blocks, device=page.device)  # entries of `pages`; some of other slices
        most_queries = max(span.n_queries for span in spans)
        window = (-1 if inputs.window is None else inputs.window - 1, 0)
        return Prepared(
            slots=inputs.slots,
            rows=torch.cat((row, row[-1:] + n_queries[-1:])).int(),
            used=used.int(),
            ends=torch.cat((used.new_zeros(1), used.cumsum(0))).int(),
            blocks=inputs.pages[blocks.clamp_(max=len(inputs.pages) - 1)].int(),
            most_queries=most_queries,
            most_keys=max(span.offset + span.n_keys for span in spans),
            # Without a window a single query sees all its keys; told so, the kernel reads them once for a whole group.
            window=(-1, -1) if inputs.window is None and most_queries == 1 else window,
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, prepared: Prepared) -> Tensor:
        if q.shape[2] % 8 or q.shape[2] > 256:
            raise OptionError(
                f"--attention varlen serves heads of up to 256 in multiples of 8, the model has {q.shape[2]}; "
                "use --attention sdpa"
            )
        cache.write(prepared.slots, k, v)
        out: Tensor = self._kernel(
            *(q, cache.k, cache.v, prepared.rows, prepared.ends, prepared.most_queries, prepared.most_keys),
            window_size=prepared.window,
            enable_gqa=True,
            seqused_k=prepared.used,
            block_table=prepared.blocks,
            num_splits=1,
        )
        return out


def try_out(kernel: Kernel, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why `kernel` does not work on `device`: what it says, or that its numbers are wrong; None if it does."""
    q = torch.ones(2, 2, 16, dtype=dtype, device=device)
    values = torch.arange(512, dtype=dtype, device=device).view(2, 256, 1, 1).expand(2, 256, 1, 16).contiguous()
    ints = torch.tensor([0, 1, 2, 2, 3, 0, 2, 5, 1, 0], dtype=torch.int32, device=device)
    rows, used, ends, blocks = ints[:3], ints[3:5], ints[5:8], ints[8:].view(2, 1)
    try:
        out = kernel(
            *(q, torch.ones_like(values), values, rows, ends, 1, 3),
            window_size=(1, 0),
            enable_gqa=True,
            seqused_k=used,
            block_table=blocks,
            num_splits=1,
        )
    except (RuntimeError, TypeError, ValueError) as error:
        return f"does not work here: {str(error).splitlines()[0]}"
    # The last two of two values from 256 on, and of three from 0 on.
    expected = torch.tensor([256.5, 1.5], dtype=dtype, device=device)[:, None, None].expand_as(out)
    return None if torch.allclose(out, expected, rtol=0.01) else "gives wrong numbers here"
