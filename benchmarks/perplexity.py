"""The loss of quality by each scheme: `python -m benchmarks.perplexity [--model MODEL] [--text FILE]`.

It measures the perplexity of the first tokens of a text, in pieces of --piece tokens, each from an empty context. It
also measures for how many tokens greedy answers equal those of float32. The default text is licences that every Debian
system has. --gpu measures the schemes of GPUs: PyTorch does their arithmetic slowly on the CPU, with activations in
float32.
"""

import argparse
import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.table import Table

from benchmarks import engine
from benchmarks.engine import SCHEMES
from model.checkpoint.resolve import EMBEDDED, resolve
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from model.tokenizers.base import Tokenizer
from model.tokenizers.load import load_tokenizer
from service.engine.messages import Submit

LICENCES = Path("/usr/share/common-licenses")
NAMES = ("GPL-3", "GFDL-1.3", "MPL-2.0", "Apache-2.0", "CC0-1.0", "Artistic")
"""Licences in the package base-files, each with different words."""
GPU_SCHEMES = {
    "float32": SCHEMES["float32"],
    **{name: {"quantize": name, "dtype": "float32"} for name in ("fp8", "int4-weights")},
}
CPU_SCHEMES = SCHEMES | {f"{name}, int8 keys": {"quantize": name, "kv_dtype": "int8"} for name in ("int8", "int4")}
ANSWER = 64
PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived",
    "To make a good cup of tea, first",
    "The theory of evolution explains",
    "def fibonacci(n):",
    "In 1969, for the first time in history,",
    "The three states of matter are",
    "My favourite season is autumn because",
    "A balanced diet should contain",
    "The difference between a virus and a bacterium is",
    "Dear Sir or Madam, I am writing to",
    "The most important invention of the last century was",
    "Water boils at a lower temperature on a mountain because",
    "The old man looked at the sky and said:",
    "Computers store numbers in binary because",
    "The advantages of public transport are",
)


def default_text() -> str:
    return "\n".join((LICENCES / name).read_text() for name in NAMES)


def score(runner: ModelRunner, tokens: list[int], piece: int) -> float:
    """Mean negative log probability of all tokens but the first one of each piece."""
    scheduler = engine.scheduler_for(runner)
    params = SamplingParams(max_tokens=0, prompt_logprobs=0)
    for first in range(0, len(tokens), piece):
        scheduler.submit(Submit(first, tokens[first : first + piece], params))
    updates = (update for step in engine.steps(runner, scheduler) for update in step.updates)
    return -fmean(item.logprob for update in updates for item in update.prompt_logprobs)


def answers(runner: ModelRunner, prompts: list[list[int]]) -> list[list[int]]:
    """The greedy continuation of every prompt."""
    scheduler = engine.scheduler_for(runner)
    for number, prompt in enumerate(prompts):
        scheduler.submit(Submit(number, prompt, engine.greedy(ANSWER)))
    found: list[list[int]] = [[] for _ in prompts]
    for step in engine.steps(runner, scheduler):
        for update in step.updates:
            found[update.id] += update.tokens
    return found


def agreement(one: list[int], other: list[int]) -> int:
    """Equal tokens before the first that differs. Worked example: [1, 2, 3] and [1, 2, 4] agree in 2."""
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), len(one))


@dataclass(frozen=True, slots=True)
class Quality:
    """The result of one scheme: the mean negative log probability, and the answers."""

    scheme: str
    loss: float
    answers: list[list[int]]


def measure(
    model: str, tokens: list[int], piece: int, tokenizer: Tokenizer, schemes: Mapping[str, Mapping[str, str]]
) -> Iterator[Quality]:
    prompts = [tokenizer.encode(text, add_bos=True, parse_control=False) for text in PROMPTS]
    with Console(stderr=True).status("") as status:
        for scheme, options in schemes.items():
            status.update(scheme)
            runner = engine.load(model, device="cpu", **options)
            yield Quality(scheme, score(runner, tokens, piece), answers(runner, prompts))


def table(found: list[Quality]) -> Table:
    result = Table("", "perplexity", "", f"equal tokens of {ANSWER}", "whole answers")
    best = found[0]
    for column in result.columns[1:]:
        column.justify = "right"
    for one in found:
        equal = [agreement(*pair) for pair in zip(best.answers, one.answers, strict=True)]
        more = math.expm1(one.loss - best.loss)
        whole = f"{equal.count(ANSWER)} of {len(equal)}"
        result.add_row(one.scheme, f"{math.exp(one.loss):.3f}", f"{more:+.2%}", f"{fmean(equal):.1f}", whole)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=EMBEDDED)
    parser.add_argument("--text", type=Path, help="a file in place of the licences")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--piece", type=int, default=1024)
    parser.add_argument("--gpu", action="store_true", help="measure the schemes of GPUs")
    args = parser.parse_args()
    text = args.text.read_text() if args.text else default_text()
    tokenizer = load_tokenizer(resolve(args.model))
    tokens = tokenizer.encode(text, add_bos=False, parse_control=False)[: args.tokens]
    print(f"{args.model}, {len(tokens)} tokens of a text with CRC-32 {zlib.crc32(text.encode()):08x}")
    schemes = GPU_SCHEMES if args.gpu else CPU_SCHEMES
    Console().print(table(list(measure(args.model, tokens, args.piece, tokenizer, schemes))))


if __name__ == "__main__":
    main()
