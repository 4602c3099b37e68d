"""transformers in `benchmarks.gpu`: the same shape in bfloat16 with random weights, on the same device.

The model has no window: a window changes nothing at these lengths, and transformers has no fast path for it.
"""

import time
from typing import Any

import torch

from benchmarks.gpu.engine import prompts
from benchmarks.gpu.shapes import Shapes


def _network(shapes: Shapes, device: torch.device) -> Any:
    from transformers import AutoModelForCausalLM, MistralConfig

    config = shapes.dense
    with torch.device(device):
        network = AutoModelForCausalLM.from_config(
            MistralConfig(
                hidden_size=config.dim,
                num_hidden_layers=config.n_layers,
                num_attention_heads=config.n_heads,
                num_key_value_heads=config.n_kv_heads,
                head_dim=config.head_dim,
                intermediate_size=config.hidden_dim,
                vocab_size=config.vocab_size,
                max_position_embeddings=config.max_position,
                sliding_window=None,
                eos_token_id=None,
            ),
            dtype=torch.bfloat16,
        )
    return network.requires_grad_(False).eval()


def static(shapes: Shapes, device: torch.device) -> float:
    """Tokens/s of one stream: `generate` over a static cache, compiled where transformers does so (not on a CPU).

    The speed comes from two lengths of answers, so that the prompt and the preparation of `generate` do not count.
    """
    network = _network(shapes, device)
    ids = torch.tensor(prompts(1, shapes.prompt, shapes.dense.vocab_size), device=device)

    def seconds(n_tokens: int) -> float:
        started = time.perf_counter()
        answer = network.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=n_tokens,
            do_sample=False,
            cache_implementation="static",
            pad_token_id=0,
        )
        assert answer.shape[1] == shapes.prompt + n_tokens
        answer.cpu()
        return time.perf_counter() - started

    short, long = shapes.warm_up, shapes.warm_up + shapes.tokens
    for n_tokens in (long, short, long):  # the longest first: its cache serves the others, and is compiled for once
        seconds(n_tokens)
    taken = [(seconds(long), seconds(short)) for _ in range(max(shapes.repeats, 3))]
    of_long, of_short = map(min, zip(*taken, strict=True))  # the least: on a busy machine differences may be below 0
    return shapes.tokens / (of_long - of_short)


def continuous(shapes: Shapes, device: torch.device) -> float:
    """Tokens/s of many streams with `generate_batch`, while all of them decode."""
    from transformers import GenerationConfig

    network, streams = _network(shapes, device), shapes.streams[1]
    inputs = prompts(streams, shapes.prompt, shapes.dense.vocab_size)
    n_tokens = 4 * shapes.warm_up + shapes.tokens
    wanted = GenerationConfig(max_new_tokens=n_tokens, do_sample=False, eos_token_id=-1, pad_token_id=0)
    outputs = network.generate_batch(
        inputs,
        generation_config=wanted,
        **_paging(shapes),
        record_timestamps=True,
        progress_bar=False,
    )
    times = [output.timestamps for output in outputs.values() if output.timestamps]
    if len(times) < streams:
        errors = {output.error for output in outputs.values()} - {None}
        raise RuntimeError(f"{streams - len(times)} of {streams} requests gave nothing: {errors or 'no reason given'}")
    first, last = max(each[0] for each in times), min(each[-1] for each in times)
    if last <= first:
        raise RuntimeError("there was no time in which all streams decoded")
    return sum(first < at <= last for each in times for at in each) / (last - first)


def _paging(shapes: Shapes) -> dict[str, Any]:
    if not shapes.paging:
        return {}
    from transformers import ContinuousBatchingConfig

    return {"continuous_batching_config": ContinuousBatchingConfig(**shapes.paging)}
