"""A picture of the engine between two steps: plain data about its pages, queue and steps.

It has no text, no token ids and no names of keys.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

MAX_RUNNING, MAX_QUEUED = 64, 16
"""Sequences in one picture that run, and that wait; the others are counted. A full engine must not hide its queue."""
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


SequenceState = Literal["waiting", "prompt", "decode", "preempted"]
Reason = Literal["pages", "sequences", "tokens", "adapters", "fairness", "priority", "grammar"]
"""Why a sequence waits: see `SequencePicture`."""


class SequencePicture(NamedTuple):
    """One sequence.

    `place` counts from 1 in the order of admission; None if the sequence runs. `reason` says why it waits: "sequences"
    (as many run as may), "pages" (for it or for one before it there are too few, or a step computes one to reuse),
    "tokens" (the prompts that run fill each step), "adapters" (as many LoRA adapters run as may), "fairness" or
    "priority" (one that came later is before it, of another key or with a lower number), or "grammar" (its grammar is
    compiled). None: the next step may take it. `cached` counts prompt tokens from the cache.
    """

    id: int
    state: SequenceState
    prompt: int
    computed: int
    generated: int
    cached: int
    reason: Reason | None
    place: int | None
    pages: tuple[TablePicture, ...] = ()


@dataclass(frozen=True, slots=True)
class Picture:
    """The answer to a `Look`.

    A look without ids gets the pools, the first sequences, how many are `left_out`, and what the steps did since the
    look before: the newest `steps`, and in `seconds` the numbers of `generated` and `prompt` tokens. A look with ids
    gets these sequences, without their pages.
    """

    pools: tuple[PoolPicture, ...] = ()
    steps: tuple[StepPicture, ...] = ()
    seconds: float = 0.0
    generated: int = 0
    prompt: int = 0
    sequences: tuple[SequencePicture, ...] = ()
    left_out: int = 0
