"""A picture of the engine between two steps: plain data about its pages, queue and steps.

It has no text, no token ids and no names of keys. The service sends these objects to clients as JSON.
"""

from dataclasses import dataclass
from typing import Literal

MAX_RUNNING, MAX_QUEUED = 64, 16
"""Sequences in one picture that run, and that wait; the others are counted. A full engine must not hide its queue."""
MAX_PAGES = 64
"""Page ids of one sequence in one pool; the newest."""
MAX_STEPS = 32


@dataclass(frozen=True, slots=True)
class PoolPages:
    """The pages of the layers with this window (null: full attention). `held` includes `shared`."""

    window: int | None
    page_size: int
    pages: int
    held: int
    shared: int
    cached: int
    free: int


@dataclass(frozen=True, slots=True)
class StepRows:
    """One step: its number, its rows by kind, its sequences and its seconds."""

    n: int
    decode: int
    prompt: int
    draft: int
    sequences: int
    seconds: float


@dataclass(frozen=True, slots=True)
class SequencePages:
    """The `held` pages of a sequence in one pool, from block `first` on.

    `ids` are the newest 64 of them, in block order. `shared` are indexes into `ids`.
    """

    first: int
    held: int
    ids: tuple[int, ...]
    shared: tuple[int, ...]


SequenceState = Literal["waiting", "prompt", "decode", "preempted"]
Reason = Literal["pages", "sequences", "tokens", "adapters", "fairness", "priority", "grammar", "disk"]
"""The reason for which a sequence waits.

"sequences": as many run as may. "pages": too few are left for it or one before it, or a step computes one to reuse.
"tokens": the prompts that run fill each step. "adapters": as many LoRA adapters run as may. "fairness", "priority": one
that came later is before it, of another key or with a lower number. "grammar": its grammar is compiled.
"disk": it, or another one, reads the pages of its prompt."""


@dataclass(frozen=True, slots=True)
class SequenceShape:
    """One sequence: its state, its numbers of tokens, why it waits, and its pages in each pool."""

    id: int
    state: SequenceState
    prompt: int
    computed: int
    generated: int
    cached: int
    reason: Reason | None
    pages: tuple[SequencePages, ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """The answer to a `Look`.

    A look without ids gets the first sequences, how many are `left_out`, and the newest `steps` since the look before.
    A look with ids gets these sequences, without their pages, and in `places` the id and the place of each that waits
    in the queue; places count from 1 in the order of admission.
    """

    steps: tuple[StepRows, ...] = ()
    sequences: tuple[SequenceShape, ...] = ()
    left_out: int = 0
    places: tuple[tuple[int, int], ...] = ()
