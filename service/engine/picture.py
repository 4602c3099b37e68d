"""A picture of the engine between two steps: plain data about its pages, queue and steps.

It has no text, no token ids and no names of keys.
"""

from dataclasses import dataclass
from typing import NamedTuple

from service.engine.budget import Cost

MAX_RUNNING, MAX_QUEUED = 64, 16
"""Sequences in one picture that run, and that wait; the others are counted. A full engine must not hide its queue."""
MAX_LOADS = 512
"""Sequences that wait, in one outlook; later ones get no estimate. With the running ones it takes about 2 ms."""
MAX_PAGES = 64
"""Page ids of one sequence in one pool; the newest."""
MAX_STEPS = 32


class PoolPicture(NamedTuple):
    """The pages of one pool. `held` includes `shared`, which two or more sequences hold."""

    window: int | None
    page_size: int
    pages: int
    held: int
    shared: int
    cached: int
    free: int


class StepPicture(NamedTuple):
    """One step: its number since the engine started, its rows by kind, its sequences and its seconds."""

    n: int
    decode: int
    prompt: int
    draft: int
    sequences: int
    seconds: float


class TablePicture(NamedTuple):
    """A sequence's pages in one pool: `held` of them from block `first` on, and the newest `ids` in block order.

    `shared` are indexes into `ids`.
    """

    first: int
    held: int
    ids: tuple[int, ...]
    shared: tuple[int, ...]


class SequencePicture(NamedTuple):
    """One sequence. `state` is "waiting", "prompt", "decode" or "preempted".

    `place` counts from 1 in the order of admission; None if the sequence runs. `reason` says why it waits: "sequences"
    (as many run as may), "pages" (for it or for one before it there are too few, or a step computes one to reuse),
    "tokens" (the prompts that run fill each step), "adapters" (as many LoRA adapters run as may), "fairness" or
    "priority" (one that came later is before it, of another key or with a lower number), or "grammar" (its grammar is
    compiled). None: the next step may take it. `cached` counts prompt tokens from the cache.
    """

    id: int
    state: str
    prompt: int
    computed: int
    generated: int
    cached: int
    reason: str | None
    place: int | None
    pages: tuple[TablePicture, ...] = ()


class Load(NamedTuple):
    """What one sequence still costs: tokens to compute before its next one, and tokens that it has and may generate.

    `uncomputed` includes the tokens that work on its images costs. `pages` are its pages in each pool, `most_pages` the
    most that it holds at one time. `place` is as above. `adapter` is its LoRA adapter, 0 for none.
    """

    id: int
    place: int | None
    length: int
    uncomputed: int
    generated: int
    max_tokens: int
    pages: tuple[int, ...]
    most_pages: tuple[int, ...]
    adapter: int = 0


class Outlook(NamedTuple):
    """What an estimate of waiting times needs: see `forecast.py`.

    `cost` is that of steps, `target` the seconds between two tokens that limit prompts (`PromptBudget`). `answers` are
    the numbers of tokens of the latest answers.
    `available` are the pages of each pool that can be taken. `loads` are all sequences that run, then the first that
    wait, in order.
    """

    cost: Cost
    target: float
    answers: tuple[int, ...]
    page_size: int
    available: tuple[int, ...]
    max_sequences: int
    max_step_tokens: int
    loads: tuple[Load, ...]
    max_adapters: int = 0


@dataclass(frozen=True, slots=True)
class Picture:
    """The answer to a `Look`.

    A look without ids gets the pools, the first sequences, how many are `left_out`, and what the steps did since the
    look before: the newest `steps`, and in `seconds` the numbers of `generated` and `prompt` tokens. A look with ids
    gets these sequences, without their pages. A look for the outlook gets that alone.
    """

    pools: tuple[PoolPicture, ...] = ()
    steps: tuple[StepPicture, ...] = ()
    seconds: float = 0.0
    generated: int = 0
    prompt: int = 0
    sequences: tuple[SequencePicture, ...] = ()
    left_out: int = 0
    outlook: Outlook | None = None
