"""Steps of a live engine over a grid of shapes, without HTTP."""

import random
from collections.abc import Callable, Iterator

from benchmarks import engine
from benchmarks.costs.fit import Sample, sample
from model.step.runner import ModelRunner
from service.engine.messages import Submit
from service.engine.scheduling.scheduler import Scheduler

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (32, 512, 2048)
CHUNKS = (16, 64, 128, 256, 512, 1024, 2048)
STEPS = 12
"""Steps in which all rows of a shape decode."""
MOST_TOKENS = 2**14
"""Of all prompts of a shape together: longer ones take too long on a CPU."""


def shapes(runner: ModelRunner) -> Iterator[tuple[int, int]]:
    """Numbers of sequences and lengths of their prompts."""
    info = runner.info
    longest = info.max_model_len - 2 * STEPS
    fitting = min(MOST_TOKENS, min(pool.n_pages for pool in info.pools) * info.page_size // 2)
    for rows in ROWS:
        for context in CONTEXTS:
            if rows <= info.max_sequences and context <= longest and rows * context <= fitting:
                yield rows, context
    yield from ((1, chunk) for chunk in CHUNKS if chunk <= min(longest, info.max_step_tokens))


def measure(runner: ModelRunner, rounds: int, seed: int, on_shape: Callable[[str], None]) -> list[Sample]:
    """The steps of all shapes, `rounds` times in random order, so that other programs disturb none of them alone."""
    rng, found = random.Random(seed), list[Sample]()
    run(runner, 2, 64, rng)  # the first steps of a process are slow
    for number in range(rounds):
        order = list(shapes(runner))
        rng.shuffle(order)
        for rows, context in order:
            on_shape(f"round {number + 1} of {rounds}: {rows} sequences of {context} tokens")
            found += run(runner, rows, context, rng)
    return found


def run(runner: ModelRunner, rows: int, context: int, rng: random.Random) -> list[Sample]:
    """Every step while `rows` prompts of `context` random tokens are computed and then decode."""
    info = runner.info
    scheduler = Scheduler(info, max_sequences=info.max_sequences, max_step_tokens=info.max_step_tokens)
    joining = 2 * rows * context // info.max_step_tokens
    for number in range(rows):
        prompt = rng.choices(range(100, info.vocab_size - 100), k=context)
        scheduler.submit(Submit(number, prompt, engine.greedy(min(STEPS + joining, info.max_model_len - context))))
    return [sample(step.batch, info.pools, step.seconds) for step in engine.steps(runner, scheduler)]
