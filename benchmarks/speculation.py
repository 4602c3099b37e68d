"""Speed without and with prompt lookup, alternating: `python -m benchmarks.speculation [MODEL] [--streams N]`.

Four tasks repeat their prompt (an edit of code, a correction, a quotation, a summary), three are free writing. The
answers without and with prompt lookup are compared token by token. They must be equal, as the schemes of the CPU
kernels promise. The scheme is the default of `noria serve`: for the embedded model the file's own blocks (int4).
"""

import argparse
import statistics
import time
from dataclasses import replace

from model.checkpoint.resolve import EMBEDDED, resolve
from model.loading import create
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from service.engine.messages import Submit
from service.engine.scheduling.scheduler import Scheduler
from service.generation.startup import load_text_side

CODE = """class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance
        self.history = []

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount
        self.history.append(("deposit", amount))

    def withdraw(self, amount):
        if amount > self.balance:
            raise ValueError("not enough money")
        self.balance -= amount
        self.history.append(("withdraw", amount))
"""
PROSE = """A noria is a water wheel that lift water from a river into a small aqueduct. It's rim carries buckets or \
pots, which fills below, ride up with the wheel and empty at the top. No animal turn it: the river's own current does. \
The norias of Hama, in Syria, are among the largest that was ever build; some of them still turns today."""
FACTS = """The mill opened in 1871 beside the river Orne. It ground wheat for nine villages. In 1902 a flood broke the \
wheel, and the owner, Jean Morel, replaced it with a turbine. The mill closed in 1954. Since 1988 it is a museum."""
GREEDY = SamplingParams(temperature=0.0, max_tokens=256)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.95, seed=3, max_tokens=256)
TASKS = {
    "code edit, greedy": (f"Add a docstring to the class and give back the whole code:\n\n{CODE}", GREEDY),
    "correction, greedy": (f"Correct the mistakes and give back the whole text:\n\n{PROSE}", GREEDY),
    "quotation, sampled": (f"Repeat this text word by word:\n\n{FACTS}", replace(SAMPLED, temperature=0.3)),
    "summary, greedy": (f"Summarize this text in two sentences:\n\n{PROSE} {FACTS}", GREEDY),
    "story, sampled": ("Write a story about a lighthouse keeper who finds a letter.", SAMPLED),
    "essay, sampled at 1": ("Why do cities grow?", replace(SAMPLED, temperature=1.0, top_p=1.0)),
    "poem, greedy": ("Write a poem about the sea.", GREEDY),
}


def answer(
    runner: ModelRunner, prompt: list[int], params: SamplingParams, streams: int
) -> tuple[list[list[int]], float, Scheduler]:
    """The tokens of each stream, the tokens/s of all streams after their first tokens, and the scheduler."""
    scheduler = Scheduler(runner.info, max_sequences=64, max_step_tokens=512)
    tokens: list[list[int]] = [[] for _ in range(streams)]
    for choice in range(streams):
        scheduler.submit(Submit(choice, prompt, params, choice))
    while not all(tokens):
        _step(runner, scheduler, tokens)
    before, started = sum(map(len, tokens)), time.perf_counter()
    while scheduler.has_work:
        _step(runner, scheduler, tokens)
    return tokens, (sum(map(len, tokens)) - before) / (time.perf_counter() - started), scheduler


def _step(runner: ModelRunner, scheduler: Scheduler, tokens: list[list[int]]) -> None:
    batch, started = scheduler.plan(), time.perf_counter()
    for update in scheduler.commit(runner.step(batch)):
        tokens[update.id] += update.tokens
    counts = batch.n_tokens - batch.n_prompt, batch.n_prompt, batch.n_pairs
    scheduler.prompts.cost.note(*counts, time.perf_counter() - started)


def measure(runner: ModelRunner, prompt: list[int], params: SamplingParams, streams: int, repeat: int) -> str:
    """A row of the table."""
    without = replace(params, prompt_lookup_num_tokens=0)
    rates: list[tuple[float, float]] = []
    for _ in range(repeat):
        plain, before, _ = answer(runner, prompt, without, streams)
        tokens, after, scheduler = answer(runner, prompt, params, streams)
        if tokens != plain:
            raise SystemExit("the answers with look-up differ")
        rates.append((before, after))
    stats = scheduler.stats()
    without, with_lookup = (statistics.median(column) for column in zip(*rates, strict=True))
    ratio = statistics.median(after / before for before, after in rates)
    drafts = f"{stats.accepted_draft_tokens}/{stats.draft_tokens}"
    return f"{sum(map(len, tokens)):6} {drafts:>10} {without:8.0f} {with_lookup:8.0f} {ratio:7.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default=EMBEDDED)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()
    directory = resolve(args.model)
    side = load_text_side(directory, None)
    if side.chat is None:
        raise SystemExit("the model has no chat template")
    runner = create(
        lambda stage, done: None, model=str(directory), max_sequences=64, max_step_tokens=512, prompt_lookup="auto"
    )
    print(f"{'':20} tokens   accepted  without     with   ratio")
    for name, (text, params) in TASKS.items():
        prompt = side.chat.encode([{"role": "user", "content": text}])
        params = replace(params, stop_token_ids=side.defaults.eos_token_ids)
        print(f"{name:20} {measure(runner, prompt, params, args.streams, args.repeat)}", flush=True)


if __name__ == "__main__":
    main()
