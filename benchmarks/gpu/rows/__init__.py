"""The rows of `benchmarks.gpu`. The result of a row is plain data; a row that fails raises."""

import math
from collections.abc import Callable

import torch

from benchmarks.gpu import peers
from benchmarks.gpu.bench import Bench, Measured, Row
from benchmarks.gpu.rows import ceilings, starting, steps
from benchmarks.gpu.rows.steps import SAMPLED, decode, full, sparse
from benchmarks.gpu.shapes import Shapes


def _peer(measure: Callable[[Shapes, torch.device], float]) -> Callable[[Bench], Measured]:
    return lambda bench: {"value": measure(bench.shapes, bench.device), "unit": "tok/s"}


COPY, PRODUCT, CHECK = "device copy", "bf16 product", "correctness"
MORE, FEWER = (1.0, math.inf), (0.0, 1.0)
ROWS = (
    Row(COPY, "ceilings", ceilings.copy),
    Row(PRODUCT, "ceilings", ceilings.product),
    Row(CHECK, "ceilings", ceilings.correctness),
    Row("decode 1", "bf16", decode(0), 0.85),
    Row("decode 64", "bf16", decode(1), 0.75),
    Row("decode 256", "bf16", decode(2), 0.70),
    Row("top_p 256", "bf16", decode(2, params=SAMPLED), beside="decode 256", between=(0.95, math.inf)),
    Row("lora 64", "bf16", steps.adapters, beside="decode 64", between=(0.75, math.inf)),
    Row("arrivals", "bf16", steps.arrivals, 0.55),
    Row("prefill 8k", "bf16", steps.prefill, 0.60),
    Row("stream 200k", "bf16", steps.stream, limit=1.05),
    Row("decode 1 fp8", "fp8", decode(0, "fp8"), 0.80, beside="decode 1", between=(1.6, math.inf)),
    Row("decode 64 fp8", "fp8", decode(1, "fp8"), 0.70, beside="decode 64", between=(1.25, math.inf)),
    Row("decode 256 fp8", "fp8", decode(2, "fp8"), 0.60, beside="decode 256", between=MORE),
    Row("decode 1 int4", "int4", decode(0, "int4"), 0.65, beside="decode 1"),
    Row("decode 64 int4", "int4", decode(1, "int4"), 0.60, beside="decode 64", between=(1.25, math.inf)),
    Row("decode 256 int4", "int4", decode(2, "int4"), 0.50, beside="decode 256", between=MORE),
    Row("128k decode 64", "128k", decode(1, of=full), 0.70, beside="decode 64", between=(0.95, math.inf)),
    Row("128k long beside 63", "128k", decode(1, of=full, long=True), 0.65),
    Row("mixtral decode 1", "mixtral", decode(0, of=sparse), 0.75),
    Row("images", "images", steps.images, 0.40),
    Row("ready", "ready", starting.ready, limit=60.0),
    Row("transformers static 1", "static", _peer(peers.static), beside="decode 1", between=FEWER),
    Row("transformers continuous 64", "continuous", _peer(peers.continuous), beside="decode 64", between=FEWER),
    Row("start 7b", "start", starting.start, limit=15.0, only_by_name=True),
)
SECONDS = {
    "ceilings": 30,
    "bf16": 110,
    "fp8": 50,
    "int4": 50,
    "128k": 60,
    "mixtral": 50,
    "images": 15,
    "ready": 60,
    "static": 80,
    "continuous": 60,
    "start": 120,
}
"""Expected seconds of each group on an H200: a guess, not a measurement."""
