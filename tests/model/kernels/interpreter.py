"""Arithmetic for Triton's interpreter: matrix products that are rounded once, multiply-adds as on a GPU.

The interpreter multiplies float32 with `np.matmul`. On a processor with AVX2 but not AVX-512, OpenBLAS gives a row
other bits at another place in the matrix. A test of bit-identity would then test NumPy. In float64 these differences
are 2^-53 of the sum: rounding to float32 hides them.
"""

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest


def create_dot(builder: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    """In place of `InterpreterBuilder.create_dot`: a @ b + d, with a product that is rounded once."""
    assert a.dtype.primitive_bitwidth >= 16, "no kernel here multiplies float8 as it is"
    product = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64))
    return type(d)(product.astype(d.data.dtype) + d.data, d.dtype.scalar)


def create_fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """In place of `InterpreterBuilder.create_fma`, which rounds twice: x * y + z, rounded once."""
    exact = x.data.astype(np.float64) * y.data + z.data  # the product of two float32 is exact
    return type(z)(exact.astype(z.data.dtype), z.dtype.scalar)


def unchecked() -> None:
    """Let the interpreter do without what takes half of its time.

    It does not look for overflow of integers. It replaces Triton's language when a kernel starts, and not again for
    each function that the kernel calls.
    """
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    look_for_overflow(False)
    replaced: set[str] = set()  # modules of functions

    def call(function: Any, *args: Any, **more: Any) -> Any:
        if function.fn.__module__ not in replaced:
            replaced.add(function.fn.__module__)
            interpreter._patch_lang(function.fn)
        return function.rewrite()(*args, **more)

    interpreter.InterpretedFunction.__call__ = call


def look_for_overflow(wanted: bool) -> None:
    """Let Triton's interpreter look for overflow of integers, or not."""
    builder = pytest.importorskip("triton.runtime.interpreter").interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=wanted)


@pytest.fixture(scope="session", autouse=True)
def product_in_order() -> Iterator[None]:
    """Triton's kernels compute with the functions above where they run under the interpreter."""
    if os.environ.get("TRITON_INTERPRET") != "1" or not importlib.util.find_spec("triton"):
        yield
        return
    from triton.runtime.interpreter import InterpreterBuilder

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_dot", create_dot)
        patch.setattr(InterpreterBuilder, "create_fma", create_fma)
        yield
