"""Records what Triton would compile for each launch, on a machine without a GPU. The kernels compute nothing.

Triton compiles a kernel once for each key: the constants and options of the launch, the types of its arguments, and
which of these are 1 or divisible by 16, unless the kernel forbids to look at that. Triton's own function makes the key.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from model.kernels import cuda as kernels
from model.kernels.cpu import native

Key = tuple[str, tuple[tuple[str, Any], ...]]
"""The kernel, and by argument or option what Triton keys on."""


class Launches:
    """The keys of all launches; `new` are those of launches since `mark`."""

    def __init__(self) -> None:
        self.seen: set[Key] = set()
        self.new: list[Key] = []

    def mark(self) -> None:
        self.new = []

    def add(self, key: Key) -> None:
        if key not in self.seen:
            self.seen.add(key)
            self.new.append(key)


def key_of(kernel: Any, args: tuple[Any, ...], options: dict[str, Any], backend: Any) -> Key:
    """What Triton keys on. `kernel` is one that is interpreted, with the arguments of its decorator."""
    from triton.runtime.jit import native_specialize_impl

    given = dict(zip(kernel.arg_names, args, strict=False)) | options
    fixed, unaligned = (kernel.kwargs[name] or () for name in ("do_not_specialize", "do_not_specialize_on_alignment"))
    found = []
    for name, value in given.items():
        if name not in kernel.arg_names or "constexpr" in str(kernel.fn.__annotations__.get(name, "")):
            found.append((name, str(value)))
        else:
            found.append(
                (name, native_specialize_impl(backend, value, False, name not in fixed, name not in unaligned))
            )
    return kernel.fn.__name__, tuple(sorted(found))


def zeroed(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *args, **options: make(*args, **options).zero_()


@contextmanager
def recorded(capability: int = 90) -> Iterator[Launches]:
    """Inside, the CPU passes for a GPU that runs the kernels. Memory is zero where a kernel should have written.

    Make no tensors on another device inside: PyTorch would remember the functions that make zeros.
    """
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.compiler import CUDABackend
    from triton.runtime.interpreter import InterpretedFunction

    launches, backend = Launches(), CUDABackend(GPUTarget("cuda", capability, 32))

    def run(kernel: Any, *args: Any, grid: object, warmup: bool, **options: Any) -> None:
        launches.add(key_of(kernel, args, options, backend))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpretedFunction, "run", run)
        patch.setattr(kernels, "serves", lambda x: True)
        patch.setattr(kernels, "serve_on", lambda device: True)
        patch.setattr(native, "kernels", lambda: None)
        for owner, name in ((torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")):
            patch.setattr(owner, name, zeroed(getattr(owner, name)))
        yield launches
