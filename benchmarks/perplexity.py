"""Perplexity of a model under each scheme on one text: `python benchmarks/perplexity.py TEXT [MODEL]`.

TEXT is a file; its first tokens are scored in pieces of 1,024, each from an empty context.
"""

import argparse
import math
from pathlib import Path

from model.checkpoint.resolve import EMBEDDED, resolve
from model.runner import ModelRunner, create
from model.sampling_params import SamplingParams
from model.tokenizers.load import load_tokenizer
from service.engine.messages import Submit
from service.engine.scheduler import Scheduler

SCHEMES = {
    "float32": {"quantize": "none", "dtype": "float32"},
    "bfloat16": {"quantize": "none", "dtype": "bfloat16"},
    "int8": {"quantize": "int8"},
}
PIECE = 1024


def score(runner: ModelRunner, tokens: list[int]) -> float:
    """Mean negative log probability of every token but the first of each piece."""
    scheduler = Scheduler(runner.info, max_sequences=1, max_step_tokens=512)
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    for first in range(0, len(tokens), PIECE):
        scheduler.submit(Submit(first, tokens[first : first + PIECE], params))
    logprobs: list[float] = []
    while scheduler.has_work:
        for update in scheduler.commit(runner.step(scheduler.plan())):
            logprobs += [item.logprob for item in update.prompt_logprobs]
    return -sum(logprobs) / len(logprobs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("model", nargs="?", default=EMBEDDED)
    parser.add_argument("--tokens", type=int, default=8192)
    asked = parser.parse_args()
    directory = resolve(asked.model)
    text = asked.text.read_text()
    tokens = load_tokenizer(directory).encode(text, add_bos=False, parse_control=False)[: asked.tokens]
    print(f"{len(tokens)} tokens of {asked.text.name}, {asked.model}")
    best = None
    for name, options in SCHEMES.items():
        runner = create(lambda stage, done: None, model=str(directory), max_step_tokens=512, **options)
        loss = score(runner, tokens)
        best = loss if best is None else best
        print(f"{name:9} {math.exp(loss):8.3f}  {100 * (math.exp(loss - best) - 1):+.2f} %", flush=True)


if __name__ == "__main__":
    main()
