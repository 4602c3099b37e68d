"""The launches of products: dense, of experts, of adapters, and what is around them."""

from collections.abc import Callable

import numpy as np
import torch

from model.kernels.cuda import adapters, convert, gate, norm, product, routing
from model.kernels.cuda.layouts import DeviceWeights
from model.kernels.groups import INT4_GROUP
from tests.model.kernels.triton_case import stacked, weights_of

BF16, F16 = torch.bfloat16, torch.float16


def dense(layout: str, n_rows: int, dtype: torch.dtype = BF16, gated: bool = False) -> Callable[[], None]:
    def launch() -> None:
        weights, _ = weights_of(layout, torch.zeros(128, 4096), dtype)
        x = torch.empty(n_rows, 4096, dtype=dtype)
        onto = None if gated else torch.empty(n_rows, 128, dtype=dtype)
        product.product(x, weights, gated=gated, onto=onto)

    return launch


def experts(layout: str, n_rows: int, *, narrow: bool = False) -> Callable[[], None]:
    """Rows of 8 experts with 2 choices, as many for each expert as one tile has; with `narrow` rounded to fp8."""

    def launch() -> None:
        x = torch.empty(n_rows * 4, 1024, dtype=BF16)
        weights = stacked([weights_of(layout, torch.zeros(128, 1024), BF16)[0]] * 8)
        tile = product.tile_of(layout, n_rows, fixed=False)
        logits = torch.empty(len(x), 8, dtype=BF16)
        plan = routing.assign(logits, 2, tile.rows, 2.5)
        product.grouped(x, weights, plan.slots, plan.experts, 2, tile, 2 * len(x), gated=True, narrow=narrow)
        routing.join(torch.empty(2 * len(x), 1024, dtype=BF16), plan.shares, x)

    return launch


def lora() -> None:
    a, b, x = (torch.empty(shape, dtype=BF16) for shape in ((16, 1024), (64, 16), (3, 1024)))
    table = np.array([[adapters.entry(a, [(0, 0, b)])]])
    grouped = adapters.group([np.arange(3)], table, torch.device("cpu"))
    adapters.add(torch.empty(3, 64, dtype=BF16), x, grouped, 0)


def around() -> None:
    x = torch.empty(3, 4096, dtype=BF16)
    norm.rms_norm(x, x[0], 1e-5)
    gate.swiglu(x)
    convert.to_fp8(x)


def narrow() -> None:
    scales, zeros = (torch.empty(1024 // INT4_GROUP, 64, dtype=dtype) for dtype in (BF16, torch.uint8))
    values = torch.empty(64, 1024, dtype=torch.float8_e4m3fn)
    convert.dequantize(DeviceWeights("fp8", values, (torch.empty(64),)), 16, 48, BF16)
    nibbles = torch.empty(64, 512, dtype=torch.uint8)
    convert.dequantize(DeviceWeights("int4", nibbles, (scales, zeros)), 16, 48, BF16)


LAUNCHES: dict[str, tuple[Callable[[], None], tuple[int, ...]]] = {
    "fp8, 1 row": (dense("fp8", 1), (89,)),
    "fp8, 64 rows": (dense("fp8", 64), (80,)),
    "int4, 1 row, gated": (dense("int4", 1, gated=True), (90,)),
    "int4, 64 rows": (dense("int4", 64), (90, 100)),
    "int4, 128 rows": (dense("int4", 128), (120,)),
    "int4, float16": (dense("int4", 1, F16), (80,)),
    "plain, experts": (experts("plain", 128), (89,)),
    "experts in fp8": (experts("fp8", 128, narrow=True), (89, 90, 100)),
    "adapters": (lora, (90,)),
    "around products": (around, (90,)),
    "narrow weights": (narrow, (80,)),
}
"""The launched functions, and the compute capabilities, times ten, for which they are compiled."""
