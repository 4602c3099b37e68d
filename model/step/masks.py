"""The tokens that grammars allow after each sequence of a step, found by a process of its own beside the network.

That process (`grammar_child.py`) has a matcher for each sequence; what a matcher has taken in is always a beginning of
the sequence's own tokens, so a sequence that comes back after a pause, or to another process, begins a new one.
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
NOTHING_LEFT = "the grammar and the request's other limits leave no token"

Row = tuple[int, int]
"""Where a token is drawn: the sequence's id, the number of tokens before."""


class Child(NamedTuple):
    """The process and its two ears: one for grammars to compile, one for steps."""

    process: subprocess.Popen[bytes]
    trying: socket.socket
    following: socket.socket

    @classmethod
    def start(cls, vocabulary: Mapping[str, Any]) -> "Child":
        """Blocks until it is ready. Raises OSError if that will never be."""
        (trying, first), (following, second) = socket.socketpair(), socket.socketpair()
        with first, second:
            process = start_python("model.grammar.process", sockets=[first, second], stderr=subprocess.DEVNULL)
        child = cls(process, trying, following)
        try:
            send(trying, vocabulary)
            receive(trying)
        except OSError:
            child.end()
            raise
        return child

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        self.trying.close()
        self.following.close()


class Masks:
    """The grammars of the sequences in a step. `vocabulary` is what `grammar_child.py` takes.

    `prepare` may be called on one other thread, all else on the one that steps.
    """

    def __init__(self, vocabulary: Mapping[str, Any], vocab_size: int) -> None:
        self.step = SamplingStep(frozenset({"grammar"}), self._hide)
        self._vocabulary = vocabulary
        self._n_octets = -(-vocab_size // 8)
        self._anything = np.full(self._n_octets, 255, dtype=np.uint8)
        self._added = torch.where(_bits(), 0.0, HIDDEN)  # [256, 8]: to the logits of 8 tokens
        self._child: Child | None = None
        self._end: weakref.finalize[[], Masks] | None = (
            None  # ends the child, once, and not later than this object ends
        )
        self._starting = Lock()
        self._asked: Child | None = None  # whose answers are to come
        self._known: dict[int, int] = {}  # sequence -> tokens of its output that the child asked last knows
        self._waiting: dict[int, Sequence[Slice]] = {}  # sequences whose masks are to come, in order
        self._rows: dict[Row, NDArray[np.uint8]] = {}
        self._failures: dict[Row, str] = {}

    def prepare(self, grammar: str) -> None:
        """Compile a grammar, which was tried before, while steps go on. What goes wrong shows when it is followed."""
        with suppress(OSError):
            child = self._started()
            send(child.trying, grammar)
            receive(child.trying)

    def start(self, draws: Sequence[Sequence[Slice]]) -> None:
        """Ask for the masks of all draws of a step. Forgets sequences that are not among them."""
        self._collect()  # what a step that failed has left
        self._rows.clear()
        self._failures.clear()
        self._waiting = {
            views[0].sequence_id: views for views in draws if views and views[0].params.grammar is not None
        }
        if not self._waiting:
            self._known.clear()
        else:
            with suppress(OSError):  # it is asked again when the answers are wanted
                self._ask()

    def failure(self, draws: Sequence[Slice]) -> str | None:
        """Why no token could be drawn for one of these."""
        reasons = (self._failures.get((view.sequence_id, view.stop)) for view in draws) if self._failures else ()
        return next(filter(None, reasons), None)

    def close(self) -> None:
        """End the child."""
        with self._starting:
            self._child = None
            if self._end is not None:
                self._end()

    def _started(self) -> Child:
        """The child, or a new one. Raises OSError."""
        with self._starting:
            if self._child is None or self._child.process.poll() is not None:
                if self._end is not None:
                    self._end()
                self._child = Child.start(self._vocabulary)
                self._end = weakref.finalize(self, self._child.end)
            return self._child

    def _ask(self) -> Child:
        """Send what the child lacks of the waiting sequences. Raises OSError when it is gone."""
        asked, self._asked = self._asked, None
        child = self._started()
        known = self._known if child is asked else {}
        self._known = {number: n for number, n in known.items() if number in self._waiting}
        send(child.following, [(number, *self._lacks(number, views)) for number, views in self._waiting.items()])
        self._asked = child
        return child

    def _lacks(self, number: int, views: Sequence[Slice]) -> tuple[str | None, Sequence[int], Sequence[int]]:
        first, draft = views[0], views[-1].tokens[views[0].stop : views[-1].stop]
        output = first.tokens[first.n_prompt : first.stop]
        known = self._known.get(number, len(output))
        self._known[number] = len(output)
        if known >= len(output):  # it begins, or is another of the same number
            return first.params.grammar, output, draft
        return None, output[known:], draft

    def _collect(self) -> None:
        """Take in the step's masks. If the child is gone, the sequence it was at fails, and the others ask again."""
        while self._waiting:
            number, views = next(iter(self._waiting.items()))
            try:
                child = self._asked or self._ask()
                (fault, n_masks), octets = receive(child.following)
            except OSError:
                self.close()
                self._asked, fault, n_masks, octets = None, TOO_MUCH, 0, b""
            del self._waiting[number]
            rows = [(view.sequence_id, view.stop) for view in views]
            if n_masks:
                self._rows |= zip(rows, np.frombuffer(octets, dtype=np.uint8).reshape(n_masks, -1), strict=False)
            if fault:
                self._failures[rows[n_masks]] = fault
                self._known.pop(number, None)

    def _hide(self, logits: Tensor, slices: Sequence[Slice]) -> None:
        """Hide the tokens that are not allowed. A row that has none left keeps one, and is a failure."""
        self._collect()
        rows = [(item.sequence_id, item.stop) for item in slices]
        # No mask: after a token that is refused, or failed. Nothing that is drawn there is kept.
        masks = np.stack([self._rows.get(row, self._anything)[: self._n_octets] for row in rows])
        self._added = self._added.to(logits.device)
        octets = torch.from_numpy(masks).to(logits.device, non_blocking=True).int().flatten()
        added = self._added.index_select(0, octets).view(len(rows), -1)
        logits += added[:, : logits.shape[1]]  # on a CPU ten times as fast as masked_fill_
        empty = logits.amax(dim=-1) == HIDDEN
        logits[:, 0].masked_fill_(empty, 0.0)
        for row, is_empty in zip(rows, empty.tolist(), strict=True):
            if is_empty:
                self._failures.setdefault(row, NOTHING_LEFT)


def _bits() -> Tensor:
    """[256, 8] bool: bit j of octet i."""
    return (torch.arange(256)[:, None] >> torch.arange(8)) & 1 == 1
