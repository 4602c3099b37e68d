"""Hashes of the tokens that the first layers of the embedded model answer, and a program that prints them.

`python -m tests.e2e.arithmetic MODEL [SCHEME ...]` is for a process whose environment chooses PyTorch's own kernels.
"""

import sys
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from model.loading import create
from model.sampling_params import SamplingParams
from tests.e2e.served import COUNTING, GREEDY, prompt
from tests.e2e.without_server import serve

SCHEMES: dict[str, dict[str, Any]] = {
    "int8": {"quantize": "int8"},
    "int4": {"quantize": "int4"},
    "bfloat16": {"dtype": "bfloat16"},
    "nvfp4": {},
}
SAMPLED = SamplingParams(temperature=1.5, seed=5, max_tokens=96)
"""At this temperature a token often depends on the last bits of the logits."""
BIASED = replace(SAMPLED, logit_bias=((300, 3.0), (301, -5.0)), min_p=0.001)
"""PyTorch changes these logits, before the compiled kernel samples."""
REQUESTS = [
    (prompt(0, 90), replace(GREEDY, max_tokens=96)),
    (prompt(1, 37), replace(COUNTING, max_tokens=96)),
    *((prompt(n, 3 * n), replace(SAMPLED, seed=n)) for n in range(2, 10)),
    (prompt(10, 20), BIASED),
]


def answer_hash(model: Path, scheme: str) -> str:
    """The hash of all tokens, with the kernels that the environment names."""
    options = {"max_model_len": 512, "cache_memory": 128 * 2**20, **SCHEMES[scheme]}
    with TemporaryDirectory() as folder:
        served = model
        if scheme == "nvfp4":
            from tests.e2e.nvfp4_model import in_nvfp4  # it needs transformers, whose import takes seconds

            served = in_nvfp4(model, Path(folder))
        answers, _ = serve(create(lambda stage, done: None, model=str(served), device="cpu", **options), REQUESTS)
    tokens = [[token for token, _ in answer] for answer in answers]
    return sha256(repr(tokens).encode()).hexdigest()[:16]


if __name__ == "__main__":
    for scheme in sys.argv[2:] or SCHEMES:
        print(scheme, answer_hash(Path(sys.argv[1]), scheme))
