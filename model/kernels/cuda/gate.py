"""SiLU-and-multiply: silu(gate) * up of a fused projection's two halves."""

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def silu(x):
    """Compute silu of float32."""
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _swiglu(gate_up, y, hidden, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    channels = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = channels < hidden
    gate = tl.load(gate_up + row * 2 * hidden + channels, mask=there).to(tl.float32)
    up = tl.load(gate_up + (row * 2 + 1) * hidden + channels, mask=there).to(tl.float32)
    tl.store(y + row * hidden + channels, (silu(gate) * up).to(y.dtype.element_ty), mask=there)


def swiglu(gate_up: Tensor) -> Tensor:
    """Compute swiglu of gate_up [T, 2 hidden], gate and up side by side -> [T, hidden]."""
    gate_up = gate_up.contiguous()
    n_rows, hidden = len(gate_up), gate_up.shape[1] // 2
    y = gate_up.new_empty(n_rows, hidden)
    _swiglu[(n_rows, triton.cdiv(hidden, BLOCK))](gate_up, y, hidden, BLOCK)
    return y
