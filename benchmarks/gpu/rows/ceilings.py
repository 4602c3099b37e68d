"""The ceilings of a device, and the check of its default attention, which come before all other rows."""

import statistics
from dataclasses import replace

import torch

from benchmarks.gpu import engine as gpu_engine
from benchmarks.gpu.bench import Bench, Measured
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner

TOLERANCE, MEAN_TOLERANCE = 0.25, 0.02
"""Limits of the greatest and of the mean difference of logprobs from sdpa, in bfloat16."""
CHECK_CACHE = 2**28


def copy(bench: Bench) -> Measured:
    """Bytes read and written by a copy within the device's memory."""
    source = torch.randint(0, 255, (bench.shapes.copy_bytes,), dtype=torch.uint8, device=bench.device)
    target = torch.empty_like(source)
    seconds = bench.best(lambda: target.copy_(source), 4 * bench.shapes.repeats)
    return {"value": 2 * bench.shapes.copy_bytes / seconds, "unit": "B/s"}


def product(bench: Bench) -> Measured:
    """A large matrix product in bfloat16 of random numbers."""
    n = bench.shapes.matrix
    a, b = (torch.randn(n, n, device=bench.device).bfloat16() for _ in range(2))
    seconds = bench.best(lambda: torch.mm(a, b), 4 * bench.shapes.repeats)
    return {"value": 2 * n**3 / seconds, "unit": "FLOP/s"}


def correctness(bench: Bench) -> Measured:
    """Compare the default attention with sdpa: logprobs of prompts, packed and in chunks, and of answers."""
    config = replace(bench.shapes.dense, n_layers=4, windows=(100, None) * 2, vocab_size=4096, max_position=1024)
    if config.dim > 1024:
        config = replace(config, dim=1024, n_heads=8, n_kv_heads=2, hidden_dim=2048)
    params = SamplingParams(temperature=0.0, max_tokens=8, logprobs=0, prompt_logprobs=0)
    prompts = [gpu_engine.prompts(1, n, config.vocab_size)[0] for n in (1, 3, 99, 100, 101, 203, 330)]
    found = []
    for more in (bench.options, {"attention": "sdpa"}):
        shapes = replace(bench.shapes, streams=(1, 1, len(prompts)), step_tokens=160)
        options = {"quantize": "none", "cache_memory": CHECK_CACHE, **more}
        runner = gpu_engine.load(config, bench.device, shapes, 512, **options)
        found.append(_logprobs(runner, prompts, params))
    mine, theirs = found
    differences = [abs(a - b) for key, a in mine.items() if (b := theirs.get(key)) is not None]
    greatest, mean = max(differences), statistics.fmean(differences)
    if len(differences) < sum(map(len, prompts)) - len(prompts) or not (greatest < TOLERANCE and mean < MEAN_TOLERANCE):
        raise RuntimeError(f"logprobs of {len(differences)} tokens differ from those of sdpa by {greatest:.3f}")
    return {"value": greatest, "unit": "nats", "mean": mean, "tokens": len(differences)}


Token = tuple[int, tuple[int, ...]]
"""The number of a sequence, and its answer so far or the position in its prompt."""


def _logprobs(runner: ModelRunner, prompts: list[list[int]], params: SamplingParams) -> dict[Token, float]:
    """Logprobs of every prompt token, and of every sampled token by the answer before it.

    Two results can be compared as long as the answers are equal.
    """
    found: dict[Token, float] = {}
    answers: dict[int, tuple[int, ...]] = {}
    scored: dict[int, int] = {}
    for seen in gpu_engine.serve(runner, [gpu_engine.submits(prompts, params)], 160):
        for update in seen.updates:
            for item in update.prompt_logprobs:
                scored[update.id] = scored.get(update.id, 0) + 1
                found[update.id, (-scored[update.id],)] = item.logprob
            for item in update.logprobs:
                answers[update.id] = (*answers.get(update.id, ()), item.token)
                found[update.id, answers[update.id]] = item.logprob
    return found
