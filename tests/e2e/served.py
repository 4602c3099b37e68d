"""What tests of promises serve: options of a runner, prompts and parameters."""

from dataclasses import replace
from typing import Any

from model.sampling_params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, logprobs=3)
SEEDED = SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=12, logprobs=3)
N_TOKENS = 8192
"""Tokens that prompts consist of."""


SERVED: list[dict[str, Any]] = [
    {"quantize": "auto"},
    {"quantize": "int8"},
    {"quantize": "int8", "kv_dtype": "int8"},
    {"dtype": "bfloat16"},
    {"quantize": "int8", "weights": "nvfp4"},
]
"""Options of `load_short`: "weights" names other weights than those of the file."""
COUNTING = replace(SEEDED, repetition_penalty=1.2, presence_penalty=0.1, frequency_penalty=0.3)


def prompt(number: int, length: int) -> list[int]:
    return [100 + (7919 * number + 31 * i * i) % (N_TOKENS - 100) for i in range(length)]
