"""Times of sparse experts on a CPU, also against another revision: `python -m benchmarks.experts [--against REV]`.

The block has the ratio of Mixtral's sizes: 8 experts of which 2 serve a token, dim 1024, hidden_dim 3584. A case calls
several such blocks, one after the other, with the norm before and the sum after them: weights then come from memory, as
in a step. With --against both revisions alternate call by call, as in `benchmarks.kernels`.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.kernels import FP4, compare, seconds, weights
from model.linear.base import RMSNorm
from model.network.moe import MoE

DIM, HIDDEN_DIM, EXPERTS, USED, LAYERS = 1024, 3584, 8, 2, 4
ROWS = (1, 2, 8, 32, 512)


def block(scheme: str) -> MoE:
    kind = "int8" if scheme in FP4 else scheme
    made = MoE(DIM, HIDDEN_DIM, EXPERTS, USED, kind).requires_grad_(False)
    made.gate.weight.data = torch.randn(EXPERTS, DIM) / DIM**0.5
    for expert in made.experts:
        parts: list[Any] = [expert.w13, expert.w2]
        for part in parts:
            part.take(0, weights(part.n_out, part.n_in, scheme))
    return made


def call_all(blocks: list[MoE], norm: RMSNorm, x: torch.Tensor) -> Callable[[], object]:
    def call() -> None:
        for one in blocks:
            one(x, norm, onto=x.clone())

    return call


@torch.inference_mode()
def answer(scheme: str) -> None:
    """The measuring process, see `benchmarks.kernels.answer`."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # as the engine does beside the kernels' threads
    norm = RMSNorm(DIM, 1e-5)
    norm.weight.data = torch.ones(DIM)
    blocks = [block(scheme) for _ in range(LAYERS)]
    known = {f"{rows} rows": call_all(blocks, norm, torch.randn(rows, DIM)) for rows in ROWS}
    for call in known.values():
        call()
    print(json.dumps([*known]), flush=True)
    for line in sys.stdin:
        print(seconds(known[line.strip()]) / LAYERS, flush=True)


if __name__ == "__main__":
    compare(__doc__, __file__, answer)
