"""The tokens that grammars allow in each sequence of a step. A separate process finds them while the network runs.

That process (`model/grammar/process.py`) has a matcher for each sequence. A matcher has read the first tokens of the
sequence's output. A sequence that returns after a pause, or to another process, begins a new matcher.
"""

import socket
import subprocess
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.batch import Slice
from model.grammar.process import MASK_SECONDS
from model.machine.child import start_python
from model.machine.frames import receive, send
from model.step.logits import HIDDEN, SamplingStep

TOO_MUCH = f"following the grammar took more than {MASK_SECONDS:g} s for one token, or broke its process"
NO_TOKEN_LEFT = "the grammar and the request's other limits leave no token"

Row = tuple[int, int]
"""A place where a token is sampled: the sequence's id, and the number of tokens before."""


class GrammarProcess(NamedTuple):
    """The process and two sockets to it: one for grammars to compile, one for the masks of steps."""

    process: subprocess.Popen[bytes]
    compiling: socket.socket
    following: socket.socket

    @classmethod
    def start(cls, vocabulary: Mapping[str, Any]) -> "GrammarProcess":
        """A ready process. Blocks until the process is ready. Raises OSError if it cannot start."""
        (compiling, first), (following, second) = socket.socketpair(), socket.socketpair()
        with first, second:
            process = start_python("model.grammar.process", sockets=[first, second], stderr=subprocess.DEVNULL)
        started = cls(process, compiling, following)
        try:
            send(compiling, vocabulary)
            receive(compiling)
        except OSError:
            started.end()
            raise
        return started

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.compiling.close()
        self.following.close()


class Masks:
    """The masks of the sequences in a step, from their grammars. `vocabulary` is for `model/grammar/process.py`.

    One other thread may call `prepare`. Only the thread that steps calls the other methods.
    """

    def __init__(self, vocabulary: Mapping[str, Any], vocab_size: int) -> None:
        self.step = SamplingStep(frozenset({"grammar"}), self._hide)
        self._vocabulary = vocabulary
        self._n_octets = -(-vocab_size // 8)
        self._all_allowed = np.full(self._n_octets, 255, dtype=np.uint8)
        self._added = torch.where(_bits(), 0.0, HIDDEN)  # [256, 8]: to the logits of 8 tokens
        self._process: GrammarProcess | None = None
        self._end: weakref.finalize[[], Masks] | None = (
            None  # ends the process once, at the latest when this object ends
        )
        self._starting = Lock()
        self._queried: GrammarProcess | None = None  # the process that owes answers
        self._known: dict[int, int] = {}  # sequence -> tokens of its output that the queried process knows
        self._waiting: dict[int, Sequence[Slice]] = {}  # sequences that wait for masks, in order
        self._rows: dict[Row, NDArray[np.uint8]] = {}
        self._failures: dict[Row, str] = {}

    def prepare(self, grammar: str) -> None:
        """Compile a grammar, which was tried before, while steps run. An error shows when a sequence follows it."""
        with suppress(OSError):
            running = self._started()
            send(running.compiling, grammar)
            receive(running.compiling)

    def start(self, samples: Sequence[Sequence[Slice]]) -> None:
        """Request the masks for `Slice.samples` of all slices of a step. Forgets all other sequences."""
        self._collect()  # answers to a step that failed
        self._rows.clear()
        self._failures.clear()
        self._waiting = {
            views[0].sequence_id: views for views in samples if views and views[0].params.grammar is not None
        }
        if not self._waiting:
            self._known.clear()
        else:
            with suppress(OSError):  # `_collect` requests them again
                self._request()

    def failure(self, samples: Sequence[Slice]) -> str | None:
        """Why no token could be sampled for one of these slices."""
        reasons = (self._failures.get((view.sequence_id, view.stop)) for view in samples) if self._failures else ()
        return next(filter(None, reasons), None)

    def close(self) -> None:
        """End the process."""
        with self._starting:
            self._process = None
            if self._end is not None:
                self._end()

    def _started(self) -> GrammarProcess:
        """The process, or a new one if it has ended. Raises OSError."""
        with self._starting:
            if self._process is None or self._process.process.poll() is not None:
                if self._end is not None:
                    self._end()
                self._process = GrammarProcess.start(self._vocabulary)
                self._end = weakref.finalize(self, self._process.end)
            return self._process

    def _request(self) -> GrammarProcess:
        """Send the new tokens of the waiting sequences. Raises OSError if the process has ended."""
        queried, self._queried = self._queried, None
        running = self._started()
        known = self._known if running is queried else {}
        self._known = {number: n for number, n in known.items() if number in self._waiting}
        send(running.following, [(number, *self._news(number, views)) for number, views in self._waiting.items()])
        self._queried = running
        return running

    def _news(self, number: int, views: Sequence[Slice]) -> tuple[str | None, Sequence[int], Sequence[int]]:
        """The grammar if the process needs a new matcher, the output it does not know, and the draft."""
        first, draft = views[0], views[-1].tokens[views[0].stop : views[-1].stop]
        output = first.tokens[first.n_prompt : first.stop]
        known = self._known.get(number, len(output))
        self._known[number] = len(output)
        if known >= len(output):  # a new sequence, or another one with this number
            return first.params.grammar, output, draft
        return None, output[known:], draft

    def _collect(self) -> None:
        """Read the masks of the step. If the process ended, its current sequence fails; others are requested again."""
        while self._waiting:
            number, views = next(iter(self._waiting.items()))
            try:
                running = self._queried or self._request()
                (fault, n_masks), octets = receive(running.following)
            except OSError:
                self.close()
                self._queried, fault, n_masks, octets = None, TOO_MUCH, 0, b""
            del self._waiting[number]
            rows = [(view.sequence_id, view.stop) for view in views]
            if n_masks:
                self._rows |= zip(rows, np.frombuffer(octets, dtype=np.uint8).reshape(n_masks, -1), strict=False)
            if fault:
                self._failures[rows[n_masks]] = fault
                self._known.pop(number, None)

    def _hide(self, logits: Tensor, slices: Sequence[Slice]) -> None:
        """Hide the tokens that are not allowed. A row with no token left fails; its token 0 stays."""
        self._collect()
        rows = [(item.sequence_id, item.stop) for item in slices]
        # A row after a refused token, or after a failure, has no mask: its sampled token is not used.
        masks = np.stack([self._rows.get(row, self._all_allowed)[: self._n_octets] for row in rows])
        self._added = self._added.to(logits.device)
        octets = torch.from_numpy(masks).to(logits.device, non_blocking=True).int().flatten()
        added = self._added.index_select(0, octets).view(len(rows), -1)
        logits += added[:, : logits.shape[1]]  # on a CPU ten times as fast as masked_fill_
        empty = logits.amax(dim=-1) == HIDDEN
        logits[:, 0].masked_fill_(empty, 0.0)
        for row, is_empty in zip(rows, empty.tolist(), strict=True):
            if is_empty:
                self._failures.setdefault(row, NO_TOKEN_LEFT)


def _bits() -> Tensor:
    """[256, 8] bool: bit j of octet i."""
    return (torch.arange(256)[:, None] >> torch.arange(8)) & 1 == 1
