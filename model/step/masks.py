"""The tokens that grammars allow in each sequence of a step. A separate process finds them while the network runs.

That process (`model/grammar/process.py`) has a matcher for each sequence. A matcher has read the first tokens of the
sequence's output. A sequence that returns after a pause, or to another process, begins a new matcher.
"""

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.batch import Slice
from model.grammar.client import GrammarProcess
from model.grammar.process import MASK_SECONDS
from model.machine.helper import ATTEMPTS, CannotStart, First, ProcessLost
from model.machine.transfers import send
from model.step.logits import HIDDEN, SamplingStep

TOO_MUCH = f"following the grammar took more than {MASK_SECONDS:g} s for one token, or too much memory"
LOST = "the process that follows grammars was lost twice; try again"
CANNOT_START = "the process that follows grammars cannot be started; try again"

Row = tuple[int, int]
"""A place where a token is sampled: the sequence's id, and the number of tokens before."""


class Masks:
    """The masks of the sequences in a step, from their grammars. `first` is the first frame for the process.

    One other thread may call `prepare`. Only the thread that steps calls the other methods.
    `restarts`: the number of processes that replaced another.
    `waits`: whether the thread that steps waits for the process, which may have to start first.
    """

    def __init__(self, first: First, vocab_size: int) -> None:
        self.step = SamplingStep(frozenset({"grammar"}), self._hide)
        self.restarts = 0
        self.waits = False
        self._first = first
        self._n_octets = -(-vocab_size // 8)
        self._all_allowed = np.full(self._n_octets, 255, dtype=np.uint8)
        self._added = torch.where(_bits(), 0.0, HIDDEN)  # [256, 8]: to the logits of 8 tokens
        self._process: GrammarProcess | None = None
        # Ends the process once, at the latest when this object ends.
        self._end: weakref.finalize[[], Masks] | None = None
        self._starting = Lock()
        self._queried: GrammarProcess | None = None  # the process that owes answers
        self._known: dict[int, int] = {}  # sequence -> tokens of its output that the queried process knows
        self._waiting: dict[int, Sequence[Slice]] = {}  # sequences that wait for masks, in order
        self._rows: dict[Row, NDArray[np.uint8]] = {}
        self._failures: dict[Row, str] = {}
        self._faults: dict[Row, str] = {}

    def prepare(self, grammar: str) -> None:
        """Compile a grammar, which was tried before, while steps run. An error shows when a sequence follows it."""
        with suppress(ProcessLost):
            self._started().ask(grammar)

    def start(self, samples: Sequence[Sequence[Slice]]) -> None:
        """Request the masks for `Slice.samples` of all slices of a step. Forgets all other sequences."""
        self._collect()  # answers to a step that failed
        self._rows.clear()
        self._failures.clear()
        self._faults.clear()
        self._waiting = {
            views[0].sequence_id: views for views in samples if views and views[0].params.grammar is not None
        }
        if not self._waiting:
            self._known.clear()
        else:
            with suppress(ProcessLost), self._waiting_for_it():  # `_collect` requests them again
                self._request()

    @property
    def all_well(self) -> bool:
        """Return whether every sequence of the step has its masks."""
        return not (self._failures or self._faults)

    def failure(self, samples: Sequence[Slice]) -> str | None:
        """Return why the request's grammar lets no token be sampled for one of these slices."""
        return _reason(self._failures, samples)

    def fault(self, samples: Sequence[Slice]) -> str | None:
        """Return the fault of the server that lets no token be sampled for one of these slices."""
        return _reason(self._faults, samples)

    def close(self) -> None:
        """End the process."""
        with self._starting:
            self._process = None
            if self._end is not None:
                self._end()

    @contextmanager
    def _waiting_for_it(self) -> Iterator[None]:
        self.waits = True
        try:
            yield
        finally:
            self.waits = False

    def _started(self) -> GrammarProcess:
        """Return the process, or a new one if it has ended. Raises CannotStart."""
        with self._starting:
            if self._process is None or self._process.ended:
                self._replace()
            assert self._process is not None
            return self._process

    def _replace(self) -> None:
        if self._end is not None:
            self._end()
        started = GrammarProcess(self._first, follows=True)
        self.restarts += self._process is not None
        self._process, self._end = started, weakref.finalize(self, started.end)

    def _request(self) -> GrammarProcess:
        """Send the new tokens of the waiting sequences. Raises ProcessLost."""
        queried, self._queried = self._queried, None
        running = self._started()
        known = self._known if running is queried else {}
        self._known = {number: n for number, n in known.items() if number in self._waiting}
        running.follow([(number, *self._news(number, views)) for number, views in self._waiting.items()])
        self._queried = running
        return running

    def _news(self, number: int, views: Sequence[Slice]) -> tuple[str | None, Sequence[int], Sequence[int]]:
        """Return the grammar if the process needs a new matcher, the output it does not know, and the draft."""
        first, draft = views[0], views[-1].tokens[views[0].stop : views[-1].stop]
        output = first.tokens[first.n_prompt : first.stop]
        known = self._known.get(number, len(output))
        self._known[number] = len(output)
        if known >= len(output):  # a new sequence, or another one with this number
            return first.params.grammar, output, draft
        return None, output[known:], draft

    def _collect(self) -> None:
        """Read the masks of the step. Each sequence has an answer then, a failure or a fault."""
        while self._waiting:
            number, views = next(iter(self._waiting.items()))
            rows = [(number, view.stop) for view in views]
            try:
                with self._waiting_for_it():
                    (failure, n_masks), octets = self._answer()
            except CannotStart:
                self._faults |= {(number, views[0].stop): CANNOT_START for number, views in self._waiting.items()}
                self._waiting.clear()
                return
            except ProcessLost as lost:
                failure, n_masks, octets = TOO_MUCH if lost.by_limits else None, 0, b""
                if not lost.by_limits:
                    self._faults[rows[0]] = LOST
            del self._waiting[number]
            if n_masks:
                self._rows |= zip(rows, np.frombuffer(octets, dtype=np.uint8).reshape(n_masks, -1), strict=False)
            if failure:
                self._failures[rows[n_masks]] = failure
                self._known.pop(number, None)

    def _answer(self) -> tuple[Any, bytes]:
        """Return the masks of the first sequence that waits, or why there are none: a fresh process tries it once more.

        Raises ProcessLost, `by_limits` if every process exceeded its limits.
        """
        losses: list[ProcessLost] = []
        while len(losses) < ATTEMPTS:
            try:
                return (self._queried or self._request()).masks()
            except ProcessLost as lost:
                self._queried = None
                losses.append(lost)
        raise next((lost for lost in reversed(losses) if not lost.by_limits), losses[-1])

    def _hide(self, logits: Tensor, slices: Sequence[Slice]) -> None:
        """Hide the tokens that are not allowed."""
        self._collect()
        rows = [(item.sequence_id, item.stop) for item in slices]
        # A row after a refused token, or after a failure, has no mask: its sampled token is not used.
        masks = np.stack([self._rows.get(row, self._all_allowed)[: self._n_octets] for row in rows])
        self._added = self._added.to(logits.device)
        octets = send(torch.from_numpy(masks), logits.device).int().flatten()
        added = self._added.index_select(0, octets).view(len(rows), -1)
        logits += added[:, : logits.shape[1]]  # on a CPU ten times as fast as masked_fill_


def _bits() -> Tensor:
    """Return [256, 8] bool: bit j of octet i."""
    return (torch.arange(256)[:, None] >> torch.arange(8)) & 1 == 1


def _reason(reasons: dict[Row, str], samples: Sequence[Slice]) -> str | None:
    if not reasons:
        return None
    return next(filter(None, (reasons.get((view.sequence_id, view.stop)) for view in samples)), None)
