"""The bytes that sampling moves on a GPU, counted without one: `python -m benchmarks.sampling`.

Rows are sampled in blocks, as the output head does. Each operation of PyTorch counts the bytes of all its inputs and
outputs, once, although a sort takes several passes. A kernel counts each value that its programs load, store or add in
memory, under Triton's interpreter. What a cache holds is counted too. Logits are normal numbers, times `--scale`.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

os.environ["TRITON_INTERPRET"] = "1"

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode  # Private: PyTorch documents the class there, nowhere else
from torch.utils._pytree import tree_leaves  # Private: it belongs to the class above
from triton.runtime.interpreter import InterpreterBuilder

from model.batch import Slice
from model.kernels.cuda import sampling
from model.memory.sizes import LOGIT_VALUES
from model.sampling_params import SamplingParams
from model.step import distribution

CASES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {},
    "top_p 0.9": {"top_p": 0.9},
    "top_k 50": {"top_k": 50},
    "min_p 0.05": {"min_p": 0.05},
    "top_k 50, top_p 0.9": {"top_k": 50, "top_p": 0.9},
}
LEFT_OUT = {"empty", "new_empty", "empty_like", "set_", "detach", "lift_fresh", "copy_"}
"""Operations without reads and writes, besides those that PyTorch calls views; and `copy_`, the interpreter's own."""
TOGETHER = 8
"""Rows of a program here; fewer programs are the same counts sooner."""


class Operations(TorchDispatchMode):
    """Adds up the bytes of the inputs and outputs of each operation. What changes in place is both.

    A scatter writes as many values as it reads.
    """

    def __init__(self) -> None:
        super().__init__()
        self.n_bytes = self.n = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **kwargs or {})
        if not func.is_view and func.overloadpacket.__name__ not in LEFT_OUT:
            used = (*args[2:], *args[3:]) if func.overloadpacket.__name__ == "scatter_" else (args, kwargs, found)
            tensors = [x for x in tree_leaves(used) if isinstance(x, Tensor)]
            self.n_bytes += sum(x.numel() * x.element_size() for x in tensors)
            self.n += 1
        return found


class Programs:
    """Adds up the bytes that programs load, store or add in memory while it is entered."""

    MASKS: ClassVar = {"create_masked_load": (0, 1), "create_masked_store": (0, 2), "create_atomic_rmw": (1, 3)}
    """The interpreter's methods that touch memory, and the places of their pointers and masks."""

    def __init__(self) -> None:
        self.n_bytes = 0
        self._originals = {name: getattr(InterpreterBuilder, name) for name in self.MASKS}

    def __enter__(self) -> Self:
        for name, places in self.MASKS.items():
            # Private: the interpreter has no hook for what programs load and store.
            setattr(InterpreterBuilder, name, self._counting(self._originals[name], *places))
        return self

    def __exit__(self, *_: object) -> None:
        for name, original in self._originals.items():
            setattr(InterpreterBuilder, name, original)  # Private: as above

    def _counting(self, original: Callable[..., Any], pointer: int, mask: int) -> Callable[..., Any]:
        def call(builder: Any, *args: Any) -> Any:
            n_bytes = args[pointer].get_element_ty().primitive_bitwidth // 8
            self.n_bytes += int(args[mask].data.sum()) * n_bytes
            return original(builder, *args)

        return call


def slices(n: int, values: dict[str, Any]) -> list[Slice]:
    return [Slice(0, [0], 1, 0, 1, (), SamplingParams(seed=seed, **values)) for seed in range(n)]


def count(logits: Tensor, items: Sequence[Slice]) -> tuple[int, int, int]:
    """Bytes and operations of PyTorch, and bytes of the kernels and what is around them, for a block of rows."""
    values = logits.clone()
    with Operations() as operations:
        expected = distribution.choose(values, items, None)
    with Operations() as around, Programs() as programs:
        tokens = distribution.choose(logits, items, sampling)
    differ = int((tokens != expected).sum())
    if differ:
        print(f"{differ} of {len(items)} tokens differ")
    return operations.n_bytes, operations.n, around.n_bytes + programs.n_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=131_072)
    parser.add_argument("--scale", type=float, default=3.0)
    parser.add_argument("--ties", action="store_true", help="logits rounded to bfloat16")
    parser.add_argument("--only", choices=CASES, nargs="+", default=[*CASES])
    args = parser.parse_args()
    n_rows = min(args.rows, LOGIT_VALUES // args.tokens // 4 * 4)
    logits = torch.randn(n_rows, args.tokens, generator=torch.Generator().manual_seed(0)) * args.scale
    logits = logits.bfloat16().float() if args.ties else logits
    sampling.ROWS, sampling.PROGRAMS = TOGETHER, sampling.PROGRAMS // TOGETHER
    print(f"GB for {args.rows} rows of {args.tokens:,} tokens, in blocks of {n_rows}")
    for name in args.only:
        before, n, after = count(logits.clone(), slices(n_rows, CASES[name]))
        scale = args.rows / n_rows / 1e9
        print(f"{name:20}  PyTorch {before * scale:6.2f} ({n} operations a block)  kernels {after * scale:5.2f}")


if __name__ == "__main__":
    main()
