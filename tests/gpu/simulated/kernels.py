"""Compiles the kernels of usual models for a card, and looks at their machine code. It needs no simulated GPU.

    python -m tests.gpu.simulated.kernels 9.0        prints a line of JSON for each kernel

Other launches are compiled in tests/model/kernels/test_triton_compiles.py; here each tile of products is, for each
layout of weights, and attention at the heads of most models.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import zip_longest
from typing import Any

import torch

from model.kernels.cuda import gate, norm
from model.kernels.cuda.limits import shared_bytes
from tests.model.kernels.compiling import Compiled, compile_for
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


def around() -> None:
    """What is around products where those in fp8 are not served."""
    x = torch.empty(3, 4096, dtype=BF16)
    norm.rms_norm(x, x[0], 1e-5)
    gate.swiglu(x)


def multiplications(capability: int) -> Launches:
    for layout in LAYOUTS:
        for rows in ROWS:
            yield f"{layout}, {rows} rows", products.dense(layout, rows)
            yield f"{layout}, {rows} rows, gated", products.dense(layout, rows, gated=True)
            yield f"{layout}, {rows} rows, experts", products.experts(layout, rows)
        yield f"{layout}, 64 rows, float16", products.dense(layout, 64, F16)
    yield "adapters", products.lora
    yield "around products", products.around if capability >= 89 else around
    yield "narrow weights", products.narrow


def hazards_in(made: Any) -> int:
    """Hazards of the machine code of a kernel, if it has products that run beside other instructions."""
    return len(hazards(disassembled(made.asm["cubin"]))) if "wgmma.mma_async" in made.asm["ptx"] else 0


def compiled(capability: int) -> Iterator[dict[str, Any]]:
    """The facts of each kernel, once: launches of one model share some."""
    seen = set()
    for launches in (attentions(capability), multiplications(capability)):
        for name, launch in launches:
            for facts in kernels_of(name, launch, capability):
                if (key := str({**facts, "launch": ""})) not in seen:
                    seen.add(key)
                    yield facts


def kernels_of(name: str, launch: Callable[[], None], capability: int) -> Iterator[dict[str, Any]]:
    """The facts of what a launch compiles. An error comes last, without machine code."""
    found: list[int] = []
    kernels = compile_for(name, launch, capability, lambda kernel, made: found.append(hazards_in(made)))
    for one, n_hazards in zip_longest(kernels, found, fillvalue=0):
        assert isinstance(one, Compiled)
        yield asdict(one) | {"hazards": n_hazards, "limit": shared_bytes(divmod(capability, 10))}


def main() -> None:
    for facts in compiled(int(sys.argv[1].replace(".", ""))):
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
