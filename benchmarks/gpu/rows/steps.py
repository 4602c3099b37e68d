"""Rows of steps: streams that decode, a long prompt, a stream without end, and requests that keep arriving."""

import statistics
from collections.abc import Callable

from benchmarks.gpu import engine as gpu_engine
from benchmarks.gpu.bench import Bench, Measured
from benchmarks.gpu.engine import GREEDY, Decoding
from benchmarks.gpu.shapes import Shapes, adapter_bytes, decode_bytes, image_flops, prefill_flops, step_flops
from benchmarks.random_weights import random_adapter
from model.config.model import ModelConfig
from model.linear.compiled import Compiled
from model.sampling_params import SamplingParams

Served = Callable[[Shapes], tuple[ModelConfig, int]]
"""The network of a row, and the longest sequence that it serves, in tokens."""
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, seed=1)


def _dense(shapes: Shapes) -> tuple[ModelConfig, int]:
    return shapes.dense, shapes.length


def sparse(shapes: Shapes) -> tuple[ModelConfig, int]:
    return shapes.sparse, min(shapes.prompt + 1024, shapes.sparse.max_position)


def full(shapes: Shapes) -> tuple[ModelConfig, int]:
    return shapes.full, shapes.full.max_position


def decode(
    streams: int, scheme: str = "none", of: Served = _dense, *, long: bool = False, params: SamplingParams = GREEDY
) -> Callable[[Bench], Measured]:
    """The measurement of decoding. `streams` is an index of `Shapes.streams`; if `long`, one has a very long prompt."""

    def measure(bench: Bench) -> Measured:
        shapes, n = bench.shapes, bench.shapes.streams[streams]
        config, length = of(shapes)
        runner = bench.runner(scheme, config, length)
        lengths = [shapes.prompt] * (n - long) + [shapes.long] * long
        steps = gpu_engine.decode(runner, shapes, lengths, params)
        return _speed(steps, decode_bytes(config, scheme, steps.contexts)) | {"runner": runner.info.description}

    return measure


def adapters(bench: Bench) -> Measured:
    """As many streams as in the second of `Shapes.streams`; stream i uses adapter i modulo their number."""
    shapes, runner = bench.shapes, bench.runner()
    config, packed = shapes.dense, any(isinstance(part, Compiled) for part in runner.head.model.modules())
    made = (random_adapter(config, shapes.rank, bench.device) for _ in range(shapes.adapters))
    each = (adapter.pack() if packed else adapter for adapter in made)
    for number, adapter in enumerate(each, 1):
        runner.adapters.hold(number, adapter)
    lengths = [shapes.prompt] * shapes.streams[1]
    steps = gpu_engine.decode(runner, shapes, lengths, adapters=shapes.adapters)
    n_used = min(shapes.adapters, len(lengths))
    return _speed(steps, decode_bytes(config, "none", steps.contexts) + n_used * adapter_bytes(config, shapes.rank))


def _speed(steps: Decoding, n_bytes: float) -> Measured:
    n = len(steps.contexts)
    return {"value": n / steps.median, "unit": "tok/s", "units": n, "bytes": n_bytes, **_steps(steps)}


def _steps(steps: Decoding) -> Measured:
    tenths = statistics.quantiles(steps.seconds, n=10, method="inclusive")
    mean = statistics.fmean(steps.seconds)
    times = {"median": steps.median, "mean": mean, "p10": tenths[0], "p90": tenths[-1]}
    return {
        "step_ms": {name: 1000 * value for name, value in times.items()},
        "steps": len(steps.seconds),
        "context": statistics.fmean(steps.contexts),
        "pages_held": steps.held,
    }


def prefill(bench: Bench) -> Measured:
    shapes = bench.shapes
    seconds = gpu_engine.prefill(bench.runner(), shapes)
    flops = prefill_flops(shapes.dense, shapes.prefill)
    return {"value": shapes.prefill / seconds, "unit": "tok/s", "units": shapes.prefill, "flops": flops}


def stream(bench: Bench) -> Measured:
    """Time and memory of a very long stream.

    Its last steps are compared with those of a stream whose window is just full. From the first full window on, the
    memory of the later half of its chunks is compared with that of the earlier half.
    """
    shapes, runner = bench.shapes, bench.runner()
    early = gpu_engine.decode(runner, shapes, [shapes.steady_tokens])
    bench.peak()
    late = gpu_engine.decode(runner, shapes, [shapes.stream], probe=bench.peak)
    chunks = [one for one in late.seen if one.step_tokens == shapes.step_tokens][
        shapes.steady_tokens // shapes.step_tokens :
    ]
    halves = chunks[: len(chunks) // 2], chunks[len(chunks) // 2 :]
    memory, pages = (
        [max(map(of, half)) for half in halves] for of in (lambda one: one.memory or 0, lambda one: one.held)
    )
    pages_grown = max(late.held - early.held, pages[1] - pages[0], 0)
    bytes_grown = max(0, memory[1] - memory[0])
    return {
        "value": late.median / early.median,
        "unit": "x",
        "pages_grown": pages_grown,
        "bytes_grown": bytes_grown,
        "note": f"{pages_grown} pages, {bytes_grown} bytes more",
        "memory": memory,
        "early": _steps(early),
        "late": _steps(late),
    }


def arrivals(bench: Bench) -> Measured:
    """Tokens/s while requests arrive steadily: nearly every step then has a chunk of a prompt and tokens of others.

    The floor is that of the counted steps: the weights for each of them, keys and values for each sampled token, and
    the products for each token of a step.
    """
    shapes, config = bench.shapes, bench.shapes.dense
    load = shapes.load
    seen = gpu_engine.arrive(bench.runner(), shapes)
    counted = gpu_engine.between(seen, load.settled, load.steps)
    first, last = counted[0], counted[-1]
    tokens = sum(len(update.tokens) for one in counted[1:] for update in one.updates)
    computed, n_steps = sum(one.step_tokens for one in counted[1:]), last.launched - first.launched
    share = (last.ahead - first.ahead) / n_steps
    mixed = sum(one.step_tokens > len(one.updates) for one in counted[1:]) / (len(counted) - 1)
    weights = decode_bytes(config, "none", [])
    keys = decode_bytes(config, "none", [load.prompt + load.answer // 2]) - weights
    return {
        "value": tokens / (last.at - first.at),
        "unit": "tok/s",
        "units": tokens,
        "bytes": n_steps * weights + tokens * keys,
        "flops": step_flops(config, computed, tokens),
        "note": f"{share:.0%} of {n_steps} steps launched ahead, {mixed:.0%} with chunks of prompts",
        "launched_ahead": share,
        "mixed": mixed,
        "steps": n_steps,
    }


def images(bench: Bench) -> Measured:
    """Patches/s of the image encoder, over one square image."""
    shapes = bench.shapes
    runner = bench.runner(config=shapes.seeing, length=shapes.prompt)
    work = gpu_engine.image(runner, shapes.image_side)
    seconds = bench.best(lambda: gpu_engine.encode(runner, work), shapes.repeats)
    flops = image_flops(shapes.seeing, work.n_patches)
    return {"value": work.n_patches / seconds, "unit": "patch/s", "units": work.n_patches, "flops": flops}
