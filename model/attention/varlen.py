"""PyTorch's varlen_attn over pages: its flash attention reads keys and values in their pages.

The keys of a slice are its visible pages in logical order. They end with the slice's last token. The causal mask is
aligned to the last query and the last key, so it and the window are right wherever the first page begins. Positions of
that page before the first visible key are outside the window.

The kernel accepts page sizes that are multiples of 256, and head_dim that is a multiple of 8, up to 256. It is correct
with num_splits=1 only: in PyTorch 2.13 any other number gives wrong rows
(github.com/pytorch/pytorch/issues/194167). One block of threads for each key head then computes a decoding row, which
has the same bits together with any others.
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
    """varlen_attn, or None if it does not exist or does not take an argument in NEEDED."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    kernel: Any = varlen_attn  # it returns a pair only with return_aux
    return kernel if inspect.signature(varlen_attn).parameters.keys() >= NEEDED else None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A step of one pool: `slots` [T] to write, and int32 tensors with an entry for each slice.

    They are the first rows and the end [S + 1], the numbers of keys [S], the beginnings and the end of the keys if they
    were packed [S + 1], and the pages [S, B].
    """

    slots: Tensor
    rows: Tensor
    used: Tensor
    ends: Tensor
    blocks: Tensor
    max_queries: int
    max_keys: int
    window: tuple[int, int]


class VarlenAttention(Attention):
    """The backend of varlen_attn, for CUDA devices of compute capability 8.0 or more. `kernel` is varlen_attn."""

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
        max_queries = max(span.n_queries for span in spans)
        window = (-1 if inputs.window is None else inputs.window - 1, 0)
        return Prepared(
            slots=inputs.slots,
            rows=torch.cat((row, row[-1:] + n_queries[-1:])).int(),
            used=used.int(),
            ends=torch.cat((used.new_zeros(1), used.cumsum(0))).int(),
            blocks=inputs.pages[blocks.clamp_(max=len(inputs.pages) - 1)].int(),
            max_queries=max_queries,
            max_keys=max(span.offset + span.n_keys for span in spans),
            # Without a window, a single query sees all keys. With (-1, -1) the kernel reads them once a group.
            window=(-1, -1) if inputs.window is None and max_queries == 1 else window,
        )

    def attend(self, q: Tensor, k: Tensor, v: Tensor, cache: LayerCache, prepared: Prepared) -> Tensor:
        if q.shape[2] % 8 or q.shape[2] > 256:
            raise OptionError(
                f"--attention varlen serves heads of up to 256 in multiples of 8, the model has {q.shape[2]}; "
                "use --attention sdpa"
            )
        cache.write(prepared.slots, k, v)
        out: Tensor = self._kernel(
            *(q, cache.k, cache.v, prepared.rows, prepared.ends, prepared.max_queries, prepared.max_keys),
            window_size=prepared.window,
            enable_gqa=True,
            seqused_k=prepared.used,
            block_table=prepared.blocks,
            num_splits=1,
        )
        return out


def try_out(kernel: Kernel, device: torch.device, dtype: torch.dtype) -> str | None:
    """Why `kernel` does not work on `device`: its error, or that its numbers are wrong. None if it works."""
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
    # The kernel computes the means of the last two of these values: of 256, 257 and of 0, 1, 2.
    expected = torch.tensor([256.5, 1.5], dtype=dtype, device=device)[:, None, None].expand_as(out)
    return None if torch.allclose(out, expected, rtol=0.01) else "gives wrong numbers here"
