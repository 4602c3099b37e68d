"""Estimates of the cost of steps on GPUs, from data sheets: `python -m benchmarks.costs.roofline FOLDER`.

Nothing of this is measured. A step takes as long as reading weights, keys and values takes, or as long as its
multiplications take, whichever is longer. Machines reach `BANDWIDTH_SHARE` and `ARITHMETIC_SHARE` of their data sheets.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from model.batch import PAGE_SIZE, PoolSpec
from model.config import VALUE_BYTES, ModelConfig
from model.memory.sizes import pool_sizes
from model.options import GPU_UTILIZATION, RunnerOptions
from service.commands.simulate.costs import Costs, Line, engine, to_json

BANDWIDTH_SHARE, ARITHMETIC_SHARE = 0.8, 0.6
STEP_OVERHEAD = 0.5e-3
"""Seconds of a step that neither reads nor multiplies: launches, sampling, the way to the host."""
REQUEST = 5e-3
"""Seconds of a request outside of steps."""
STEP_MEMORY = 2 * 2**30
"""Bytes that the largest step takes beside weights and cache."""


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


NAME = "Mistral 7B v0.3, bfloat16"
MISTRAL_7B = ModelConfig("mistral", 4096, 32, 32, 8, 128, 14336, 32768, 1e-5, 1e6, 32768, (None,) * 32)


def estimate(gpu: Gpu, config: ModelConfig) -> Costs:
    """The costs of a dense model with full attention in bfloat16."""
    sizes = pool_sizes(config, RunnerOptions(model=""), "cuda", "bfloat16", PAGE_SIZE)
    position_bytes, head = sizes.page_bytes(None) // PAGE_SIZE, config.vocab_size * config.dim
    read = 1 / (gpu.bandwidth * BANDWIDTH_SHARE)
    compute = 2 / (gpu.operations * ARITHMETIC_SHARE)  # a multiplication and an addition
    weights = (config.n_active_parameters + head) * VALUE_BYTES[config.dtype]
    reading = Line(step=STEP_OVERHEAD + weights * read, key=position_bytes * read)
    arithmetic = Line(
        step=STEP_OVERHEAD,
        token=config.n_active_parameters * compute,
        sequence=head * compute,
        pair=2 * config.n_layers * config.n_heads * config.head_dim * compute,  # a key and a value each
    )
    stored = config.n_parameters * VALUE_BYTES[config.dtype]
    cache = gpu.memory * GPU_UTILIZATION - stored - STEP_MEMORY
    pages = int(cache / (PAGE_SIZE * position_bytes))
    info = engine(
        [PoolSpec(None, pages)],
        page_size=PAGE_SIZE,
        max_model_len=min(config.max_position, pages * PAGE_SIZE),
        max_sequences=sizes.max_sequences,
        max_step_tokens=sizes.max_step_tokens,
    )
    about = {
        "title": f"estimate: {NAME} on {gpu.name}",
        "how": "roofline of the data sheet, by python -m benchmarks.costs.roofline; nothing is measured",
        "share_of_bandwidth": BANDWIDTH_SHARE,
        "share_of_arithmetic": ARITHMETIC_SHARE,
        "bandwidth": gpu.bandwidth,
        "operations_per_second": gpu.operations,
    }
    return Costs(about, (reading, arithmetic), REQUEST, info)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, gpu in GPUS.items():
        text = json.dumps(to_json(estimate(gpu, MISTRAL_7B)), indent=1)
        (folder / f"estimate-{name}-mistral-7b.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
