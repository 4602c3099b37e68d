"""Launches of Triton's kernels that are also computed, by Triton's interpreter, over the memory of the simulated card.

Triton decides at import whether it interprets. It is imported twice: kernels of the first copy interpret, those of the
second compile and launch, as the product sees it.
"""

import importlib
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from tests.model.kernels.interpreter import create_dot, create_fma, unchecked

ROOM = "model.kernels.cuda"
ROUNDED = {"fp8e4nv": (torch.float8_e4m3fn, torch.uint8, 448.0), "bf16": (torch.bfloat16, torch.uint16, np.inf)}
"""Number formats of Triton as PyTorch's, the integers that the interpreter has for them, and the limit of values."""
FOR_COMPILERS = ("num_warps", "num_stages", "enable_fp_fusion")
"""Options of a launch that the interpreter does not know."""
WORDS = {"fp32": "float32", "fp16": "float16", "fp8e4nv": "float8e4nv"}
Key = tuple[str, str]
"""Module and name of a kernel."""


class Kernels:
    """The kernels of the product under the interpreter."""

    def __init__(self) -> None:
        os.environ["TRITON_INTERPRET"] = "1"
        self._found = dict(self._read())
        self._language = sys.modules["triton.language"]
        unchecked()
        exact_products()
        rounded()
        # Private: the second import must not find the first one's modules, and no door of Triton's loads it twice.
        for name in list(sys.modules):
            if f"{name}.".startswith(("triton.", f"{ROOM}.")) and not name.startswith("triton._C"):
                del sys.modules[name]
        del os.environ["TRITON_INTERPRET"]

    def _read(self) -> Mapping[Key, Any]:
        room = importlib.import_module(ROOM)
        modules = [importlib.import_module(info.name) for info in pkgutil.walk_packages(room.__path__, f"{ROOM}.")]
        kernels = [(module.__name__, name, value) for module in modules for name, value in vars(module).items()]
        return {(module, name): one for module, name, one in kernels if type(one).__name__ == "InterpretedFunction"}

    def run(self, key: Key, grid: Any, args: list[Any], options: Mapping[str, Any]) -> None:
        """Compute a launch."""
        own = {name: self._own(value) for name, value in options.items() if name not in FOR_COMPILERS}
        with np.errstate(all="ignore"):  # a card does not warn
            self._found[key].run(*map(self._own, args), grid=grid, warmup=False, **own)

    def _own(self, value: Any) -> Any:
        """A number format of the second copy of Triton, in the first, where NumPy has no bfloat16."""
        if type(value).__name__ != "dtype" or not type(value).__module__.startswith("triton"):
            return value
        return self._language.float32 if value.name == "bf16" else getattr(self._language, WORDS[value.name])


def exact_products() -> None:
    """Multiply as the tests of `tests/model` do: a row has the same bits at any place."""
    # Private: as there.
    builder: Any = sys.modules["triton.runtime.interpreter"].InterpreterBuilder
    own = builder.create_dot
    builder.create_fma = create_fma
    builder.create_dot = lambda self, a, *more: (own if a.dtype.primitive_bitwidth < 16 else create_dot)(self, a, *more)


def rounded() -> None:
    """Convert by PyTorch: the interpreter cuts to bf16, and loses a carry into the exponent where it rounds to e4m3."""
    interpreter: Any = sys.modules["triton.runtime.interpreter"]
    own = interpreter._convert_float

    def convert(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if target.name not in ROUNDED or values.dtype.kind != "f":
            return own(values, source, target, rounding)
        dtype, bits, largest = ROUNDED[target.name]
        numbers = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).clamp(-largest, largest)
        return numbers.to(dtype).view(bits).numpy()

    # Private: the interpreter has no door for its conversions.
    interpreter._convert_float = convert


def on_launch(note: Callable[[Key, Any, list[Any], dict[str, Any]], None]) -> None:
    """Tell `note` of each launch, after it was compiled and launched."""
    from triton.runtime.jit import JITFunction

    own = JITFunction.run

    def run(function: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        made = own(function, *args, grid=grid, warmup=warmup, **options)
        if not warmup:
            note((function.fn.__module__, function.fn.__name__), grid, list(args), options)
        return made

    # Private: Triton's hooks of launches get no arguments of the kernel.
    JITFunction.run = run
