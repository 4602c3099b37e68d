"""Compile the GPU's products for a device that is not there: `python -m tests.model.kernels.compile_launches 90`.

Each function is called as the network calls it, on tensors of the CPU, but a launch compiles its kernel for the compute
capability instead, down to machine code. This
finds errors that the interpreter does not see: in layouts, shared memory, assembly.
"""

import sys
from typing import Any

import numpy as np
import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction, mangle_type

from model.kernels.cuda import adapters, convert, gate, norm, product, routing
from model.kernels.cuda.layouts import DeviceWeights
from tests.model.kernels.triton_case import weights_of

SHARED_BYTES = {75: 65536, 80: 166912, 90: 232448}
"""Bytes of shared memory that a program may have (CUDA programming guide, maximum shared memory per block)."""


def specialized(value: Any, parameter: Any) -> bool:
    """Whether Triton knows that the value is a multiple of 16."""
    if isinstance(value, Tensor):
        return value.data_ptr() % 16 == 0
    return isinstance(value, int) and not parameter.do_not_specialize and value % 16 == 0


def compile_instead(capability: int) -> Any:
    """A `JITFunction.run` that compiles."""

    def run(self: JITFunction, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        given = dict(zip(self.arg_names, args, strict=False))
        given |= {name: options.pop(name) for name in self.arg_names if name in options}
        signature, constants, attributes = {}, {}, {}
        for at, parameter in enumerate(self.params):
            value = given[parameter.name]
            one = isinstance(value, int) and value == 1 and not parameter.do_not_specialize
            if parameter.is_constexpr or value is None or one:
                signature[parameter.name], constants[parameter.name] = "constexpr", value
                continue
            signature[parameter.name] = mangle_type(value)
            if specialized(value, parameter):
                attributes[(at,)] = [["tt.divisibility", 16]]
        source = ASTSource(self, signature, constants, attributes)
        compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
        assert compiled.metadata.shared <= SHARED_BYTES[capability], (self.__name__, compiled.metadata.shared)
        print(self.__name__, constants.get("LAYOUT", ""), flush=True)

    return run


def products(dtype: torch.dtype, *layouts: str, n_rows: int = 1) -> None:
    for layout in layouts:
        weights, _ = weights_of(layout, torch.randn(64, 1024), dtype)
        x = torch.randn(n_rows, 1024).to(dtype)
        product.product(x, weights, onto=torch.empty(n_rows, 64, dtype=dtype))
        product.product(x, weights, gated=True)


def experts() -> None:
    x = torch.randn(3, 1024).bfloat16()
    plan = routing.assign(torch.randn(3, 8).bfloat16(), 2, 16, torch.zeros(8, dtype=torch.int64), 2.5)
    weights = DeviceWeights("plain", torch.empty(8, 64, 1024, dtype=torch.bfloat16))
    tile = product.tile_of("plain", 16, fixed=False)
    product.grouped(x, weights, plan.slots, plan.experts, 2, tile, 6, gated=True)
    routing.join(torch.empty(6, 1024).bfloat16(), plan.shares, x)


def lora() -> None:
    a, b, x = (torch.empty(shape, dtype=torch.bfloat16) for shape in ((16, 1024), (64, 16), (3, 1024)))
    table = np.array([[adapters.entry(a, [(0, 0, b)])]])
    grouped = adapters.group([np.arange(3)], table, torch.device("cpu"))
    adapters.add(torch.empty(3, 64, dtype=torch.bfloat16), x, grouped, 0)


def around() -> None:
    x = torch.randn(3, 4096).bfloat16()
    norm.rms_norm(x, x[0], 1e-5)
    gate.swiglu(x)
    convert.to_fp8(x)
    for layout in ("int8", "int4"):
        convert.dequantize(weights_of(layout, torch.randn(64, 1024))[0], 16, 48, torch.bfloat16)


def main() -> None:
    capability = int(sys.argv[1])
    JITFunction.run = compile_instead(capability)
    if capability == 75:
        products(torch.float16, "int4")
    elif capability == 80:
        products(torch.bfloat16, "int8")
    else:
        products(torch.bfloat16, "plain", "fp8", "int8", "int4")
        products(torch.bfloat16, "int4", n_rows=64)
        experts()
        lora()
        around()


if __name__ == "__main__":
    main()
