"""Estimates of the cost of steps on GPUs, from data sheets: `python -m benchmarks.costs.roofline FOLDER`.

Nothing of this is measured. A step takes as long as reading weights, keys and values takes, or as long as its
multiplications take, whichever is longer. Machines reach `BANDWIDTH_SHARE` and `ARITHMETIC_SHARE` of their data sheets.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from model.batch import PAGE_SIZE, PoolSpec
from model.options import GPU_UTILIZATION, STEP_LIMITS
from service.commands.simulate.costs import Costs, Line, engine, to_json

BANDWIDTH_SHARE, ARITHMETIC_SHARE = 0.8, 0.6
STEP_OVERHEAD = 0.5e-3
"""Seconds of a step that neither reads nor multiplies: launches, sampling, the way to the host."""
REQUEST = 5e-3
"""Seconds of a request outside of steps."""
STEP_MEMORY = 2 * 2**30
"""Bytes that the largest step takes beside weights and cache."""
VALUE_BYTES = 2


@dataclass(frozen=True, slots=True)
class Gpu:
    """Bytes of memory, bytes/s that it reads, and dense operations/s in bfloat16, by the maker's data sheet."""

    name: str
    memory: float
    bandwidth: float
    operations: float


GPUS = {
    "a100-80gb": Gpu("A100 SXM 80 GB", 80e9, 2.039e12, 312e12),
    "h100-80gb": Gpu("H100 SXM 80 GB", 80e9, 3.35e12, 989e12),
    "l4-24gb": Gpu("L4 24 GB", 24e9, 0.3e12, 121e12),
}


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of a dense model with full attention, named as in `params.json`."""

    name: str
    dim: int
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    hidden_dim: int
    vocab_size: int
    max_model_len: int

    @property
    def head(self) -> int:
        """Parameters of the output head; the embedding has as many, and multiplies nothing."""
        return self.dim * self.vocab_size

    @property
    def layers(self) -> int:
        """Parameters of all projections of all layers."""
        attention = 2 * self.dim * self.head_dim * (self.n_heads + self.n_kv_heads)
        return self.n_layers * (attention + 3 * self.dim * self.hidden_dim)

    @property
    def position_bytes(self) -> int:
        """Bytes of keys and values of one position."""
        return 2 * self.n_layers * self.n_kv_heads * self.head_dim * VALUE_BYTES


MISTRAL_7B = Shape("Mistral 7B v0.3, bfloat16", 4096, 32, 32, 8, 128, 14336, 32768, 32768)


def estimate(gpu: Gpu, shape: Shape) -> Costs:
    read = 1 / (gpu.bandwidth * BANDWIDTH_SHARE)
    compute = 2 / (gpu.operations * ARITHMETIC_SHARE)  # a multiplication and an addition
    weights = (shape.layers + shape.head) * VALUE_BYTES
    reading = Line(step=STEP_OVERHEAD + weights * read, key=shape.position_bytes * read)
    arithmetic = Line(
        step=STEP_OVERHEAD,
        token=shape.layers * compute,
        sequence=shape.head * compute,
        pair=2 * shape.n_layers * shape.n_heads * shape.head_dim * compute,  # a key and a value each
    )
    embedding = shape.head * VALUE_BYTES
    cache = gpu.memory * GPU_UTILIZATION - weights - embedding - STEP_MEMORY
    pages = int(cache / (PAGE_SIZE * shape.position_bytes))
    sequences, tokens = STEP_LIMITS["cuda"]
    info = engine(
        [PoolSpec(None, pages)],
        page_size=PAGE_SIZE,
        max_model_len=min(shape.max_model_len, pages * PAGE_SIZE),
        max_sequences=sequences,
        max_step_tokens=tokens,
    )
    about = {
        "title": f"estimate: {shape.name} on {gpu.name}",
        "how": "roofline of the data sheet, by python -m benchmarks.costs.roofline; nothing is measured",
        "share_of_bandwidth": BANDWIDTH_SHARE,
        "share_of_arithmetic": ARITHMETIC_SHARE,
        "bandwidth": gpu.bandwidth,
        "operations_per_second": gpu.operations,
    }
    return Costs(about, (reading, arithmetic), REQUEST, info)


def main() -> None:
    folder = Path(sys.argv[1])
    for name, gpu in GPUS.items():
        text = json.dumps(to_json(estimate(gpu, MISTRAL_7B)), indent=1)
        (folder / f"estimate-{name}-mistral-7b.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
