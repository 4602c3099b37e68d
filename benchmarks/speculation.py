"""Speed without and with drafts, in turns: `python -m benchmarks.speculation [MODEL] [--draft self] [--streams 1,4]`.

The 40 prompts of speculation.json are chats, edits of code, tool calls and summaries. Each answer without drafts is
compared with that with drafts, token by token: one that differs ends the program. Rates are of the tokens after the
first, ratios are geometric means. No request drafts from the answer to another.

--quantize none serves 16 bits. The embedded model's weights lie on a grid of 4 bits, so that its copy in 4 bits guesses
nearly always right. --noise 1 moves each weight by up to half a step of such a grid, as it lies in other models.

--chance P leaves out the model's own drafts: a drafter knows the answer, and is right with this chance. The model
"seven-b" has random weights, and the sizes of Mistral 7B with eight layers.
"""

import argparse
import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks import random_weights
from benchmarks.gpu.shapes import MISTRAL_7B
from model.checkpoint.open import Checkpoint, open_checkpoint
from model.checkpoint.resolve import EMBEDDED, resolve
from model.checkpoint.stored import Stored
from model.kernels.groups import BLOCK_GROUP
from model.loading import load_from
from model.options import RunnerOptions
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from service.engine.messages import Stats, Submit
from service.engine.scheduling.drafts import Drafter
from service.engine.scheduling.scheduler import Scheduler
from service.generation.startup import load_text_side

PROMPTS = Path(__file__).with_suffix(".json")
SEVEN_B = replace(MISTRAL_7B, n_layers=8, windows=(4096,) * 8)
Prompt = tuple[str, list[int]]
"""Kind and tokens."""
Guess = Callable[[Submit], Drafter]
"""Makes the drafter of a request."""


class Guesses:
    """Knows the answer, and drafts each token of it right with one chance."""

    name, has_passes = "prompt_lookup", False

    def __init__(self, n_prompt: int, answer: Sequence[int], chance: float) -> None:
        self.chances: list[float] = []
        self._n_prompt, self._answer, self._chance = n_prompt, answer, chance
        self._random = random.Random(0)

    def draft(self, tokens: Sequence[int], n_tokens: int) -> list[int]:
        """See `Drafter`."""
        first = len(tokens) - self._n_prompt
        right = self._answer[first : first + n_tokens]
        self.chances = [self._chance] * len(right)
        return [token if self._random.random() < self._chance else token ^ 1 for token in right]

    def observe(self, sampled: Sequence[int], n_verified: int) -> None:
        """See `Drafter`."""


class Measured(Scheduler):
    """A scheduler whose steps are timed as the engine's are."""

    def __init__(self, runner: ModelRunner, own: int) -> None:
        super().__init__(replace(runner.info, own_draft_tokens=own), max_sequences=64, max_step_tokens=512)
        self._runner = runner

    def step(self, tokens: list[list[int]]) -> None:
        batch, started = self.plan(), time.perf_counter()
        output = self._runner.step(batch)
        for update in self.commit(output):
            tokens[update.id] += update.tokens
        counts, cost = (batch.n_tokens - batch.n_prompt, batch.n_prompt, batch.n_pairs), self.prompts.cost
        cost.note(*counts, time.perf_counter() - started - output.draft_seconds)
        if output.draft_passes:
            cost.note_passes(output.draft_passes, output.draft_seconds)


def answer(scheduler: Measured, requests: list[Submit], guess: Guess | None = None) -> tuple[list[list[int]], float]:
    """The tokens of each request, and the tokens/s of all after their first tokens."""
    tokens: list[list[int]] = [[] for _ in requests]
    for item in requests:
        scheduler.submit(item)
    if guess is not None:
        for item, sequence in zip(requests, scheduler.view({}).waiting, strict=True):
            sequence.drafters = [(guess(item), 10)]
    while not all(tokens):
        scheduler.step(tokens)
    before, started = sum(map(len, tokens)), time.perf_counter()
    while scheduler.has_work:
        scheduler.step(tokens)
    return tokens, (sum(map(len, tokens)) - before) / (time.perf_counter() - started)


def ratio(plain: Measured, drafting: Measured, requests: list[Submit], chance: float | None) -> float:
    """The ratio of speeds, with drafts to without. No page is shared: both schedulers have the same memory."""
    without = [replace(item, params=replace(item.params, prompt_lookup_num_tokens=0)) for item in requests]
    expected, before = answer(plain, without)

    def guess(item: Submit) -> Drafter:
        return Guesses(len(item.prompt), expected[item.id], chance or 0.0)

    found, after = answer(drafting, requests) if chance is None else answer(drafting, without, guess)
    if found != expected:
        raise SystemExit("the answers with drafts differ")
    return after / before


def noisy(checkpoint: Checkpoint, noise: float) -> Checkpoint:
    """Move each weight of a matrix at random, by up to `noise` / 2 steps of a grid of 4 bits in groups of channels."""

    def moved(skip: Any) -> Iterator[tuple[str, Stored]]:
        generator = torch.Generator().manual_seed(0)
        for name, stored in checkpoint.read(skip):
            if len(stored.shape) != 2 or stored.shape[1] % BLOCK_GROUP:
                yield name, stored
                continue
            weight = torch.cat([*stored.parts()]).float()
            groups = weight.unflatten(1, (-1, BLOCK_GROUP))
            step = groups.abs().amax(-1, keepdim=True) / 7
            groups += noise * step * (torch.rand(groups.shape, generator=generator) - 0.5)
            yield name, Stored(weight.bfloat16())

    return replace(checkpoint, read=moved, kind="floats", own_bits=None)


def load(model: str, noise: float, **options: Any) -> tuple[ModelRunner, list[Prompt], tuple[int, ...]]:
    """The runner, the prompts in its tokens, and its end tokens."""
    common = {"device": "cpu", "max_sequences": 64, "max_step_tokens": 512, "max_model_len": 2048, **options}
    if model == "seven-b":
        made = random_weights.checkpoint(SEVEN_B, torch.device("cpu"))
        with TemporaryDirectory() as empty:  # where a tokenizer is looked for
            runner = load_from(made, RunnerOptions(empty, **common), lambda stage, done: None)
        return runner, [("random", random.Random(n).choices(range(3, 32_000), k=64)) for n in range(4)], ()
    directory = resolve(model)
    side = load_text_side(directory, None)
    if side.chat is None:
        raise SystemExit("the model has no chat template")
    opened = open_checkpoint(directory, max_model_len=2048)
    runner = load_from(
        noisy(opened, noise) if noise else opened, RunnerOptions(str(directory), **common), lambda *_: None
    )
    encode = side.chat.encode
    texts = [(kind, text) for kind, texts in json.loads(PROMPTS.read_text()).items() for text in texts]
    prompts = [(kind, encode([{"role": "user", "content": text}])) for kind, text in texts]
    return runner, prompts, tuple(side.defaults.eos_token_ids)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default=EMBEDDED)
    parser.add_argument("--quantize", default="auto")
    parser.add_argument("--draft", default="off", choices=("off", "self"))
    parser.add_argument("--prompt-lookup", default="auto", choices=("auto", "off"))
    parser.add_argument("--streams", default="1")
    parser.add_argument("--temperatures", default="0,0.8")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--every", type=int, default=1, help="take every so many prompts")
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--chance", type=float)
    args = parser.parse_args()
    options = {"quantize": args.quantize, "draft": args.draft, "prompt_lookup": args.prompt_lookup}
    runner, prompts, ends = load(args.model, args.noise, **options)
    print(f"{runner.info.description['kernels']}, {runner.info.description['quantize']}, {args}")
    for streams in map(int, args.streams.split(",")):
        for temperature in map(float, args.temperatures.split(",")):
            params = SamplingParams(temperature=temperature, top_p=0.95, max_tokens=args.tokens, stop_token_ids=ends)
            plain, drafting = Measured(runner, 0), Measured(runner, 0 if args.chance else runner.info.own_draft_tokens)
            kinds: dict[str, list[float]] = {}
            for number, (kind, prompt) in enumerate(prompts[:: args.every]):
                of = [Submit(n, prompt, replace(params, seed=n), cache_salt=f"{number} {n}") for n in range(streams)]
                kinds.setdefault(kind, []).append(ratio(plain, drafting, of, args.chance))
            print(row(streams, temperature, kinds, drafting.stats()), flush=True)


def row(streams: int, temperature: float, kinds: dict[str, list[float]], stats: Stats) -> str:
    """A line of the result: the mean of all prompts, the least, the mean of each kind, and the accepted drafts."""
    every = [ratio for some in kinds.values() for ratio in some]
    means = ", ".join(f"{kind} {geometric_mean(some):.2f}" for kind, some in kinds.items())
    counts = [
        f"{name} {getattr(stats, f'{name}_accepted')}/{getattr(stats, f'{name}_drafted')}" for name in stats.drafters
    ]
    about = f"{streams:2} streams, temperature {temperature}: {geometric_mean(every):.2f}, at least {min(every):.2f}"
    return f"{about} ({means}); accepted: {', '.join(counts) or 'none'}"


if __name__ == "__main__":
    main()
