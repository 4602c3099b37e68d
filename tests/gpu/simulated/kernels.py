"""Compiles the kernels of usual models for a card, and looks at their machine code. It needs no simulated GPU.

    python -m tests.gpu.simulated.kernels 9.0        prints a line of JSON for each kernel

Other launches are compiled in tests/model/kernels/test_triton_compiles.py; here each tile of products is, for each
layout of weights, and attention at the heads of most models.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch

from model.kernels.cuda.limits import shared_bytes
from tests.model.kernels.compiling import compile_for
from tests.model.kernels.hazards import disassembled, hazards
from tests.model.kernels.launches import products
from tests.model.kernels.launches.attention import LONG, SHORT, attention

CARDS = ("8.0", "8.6", "8.9", "9.0", "10.0", "12.0")
"""Those that Triton compiles for. 7.5 is served by PyTorch."""
BF16, F16, F32, FP8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
ROWS = (1, 64, 128)
LAYOUTS = ("plain", "fp8", "int4")
Launches = Iterator[tuple[str, Callable[[], None]]]


def attentions(capability: int) -> Launches:
    spans = (LONG, SHORT)
    yield "attention, 32 heads of 128", attention(BF16, (32, 8), 128, spans=spans)
    yield "attention, 9 heads of 64", attention(BF16, (9, 3), 64, spans=spans)
    yield "attention, deterministic", attention(BF16, (32, 8), 128, spans=spans, deterministic=True)
    yield "attention, float32, 16 heads of 256", attention(F32, (16, 4), 256, spans=spans)
    yield "attention, latents of Small 4", attention(BF16, (32, 1), 320, 256, spans=spans, tempered=True)
    if capability >= 89:
        yield "attention, fp8 keys", attention(BF16, (32, 8), 128, kv_dtype=FP8, spans=spans)


def dense() -> Launches:
    for layout in LAYOUTS:
        for rows in ROWS:
            yield f"{layout}, {rows} rows", products.dense(layout, rows)
            yield f"{layout}, {rows} rows, gated", products.dense(layout, rows, gated=True)
            yield f"{layout}, {rows} rows, experts", products.experts(layout, rows)
        yield f"{layout}, 64 rows, float16", products.dense(layout, 64, F16)
    yield "adapters", products.lora
    yield "around products", products.around
    yield "narrow weights", products.narrow


def hazards_in(made: Any) -> int:
    """Hazards of the machine code of a kernel, if it has products that run beside other instructions."""
    return len(hazards(disassembled(made.asm["cubin"]))) if "wgmma.mma_async" in made.asm["ptx"] else 0


def compiled(capability: int) -> Iterator[dict[str, Any]]:
    seen = set()
    for launches in (attentions(capability), dense()):
        for name, launch in launches:
            found: list[int] = []
            kernels = compile_for(name, launch, capability, lambda _, made: found.append(hazards_in(made)))  # noqa: B023
            for one, n_hazards in zip(kernels, [*found, 0], strict=False):
                facts = asdict(one) | {"hazards": n_hazards, "limit": shared_bytes(divmod(capability, 10))}
                if (key := str({**facts, "launch": ""})) not in seen:
                    seen.add(key)
                    yield facts


def main() -> None:
    for facts in compiled(int(sys.argv[1].replace(".", ""))):
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
