"""The tokens that grammars allow after each sequence: one matcher a sequence, masks of a whole step at once.

A mask is worked out on other threads while the network computes the logits it is for. What a matcher has taken in is
always a beginning of the sequence's own tokens, so a sequence that comes back after a pause starts a new one.
"""

import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.batch import Slice
from model.grammar import Compiler, problem
from model.sampler import HIDDEN, Step

if TYPE_CHECKING:
    from llguidance import LLMatcher

MAX_COMPILED = 32
BURST_SECONDS, TOKEN_SECONDS = 1.0, 0.01
"""Processor time that one sequence may spend on its masks: an ambiguous grammar costs more with every token."""

Row = tuple[int, int]
"""Where a token is drawn: the sequence's id, the number of tokens before."""


class Allowed(NamedTuple):
    """A bit for each token, 32 to a word; or why no token can be told."""

    words: NDArray[np.int32]
    failure: str | None = None


class Masks:
    """The grammars of the sequences in a step. `load` makes the compiler, when the first grammar comes.

    `prepare` may be called on any thread, all else on the one that steps.
    """

    def __init__(self, load: Callable[[], Compiler], vocab_size: int) -> None:
        self.step = Step(lambda params: params.grammar is not None, self._hide)
        self._load = load
        self._n_words = -(-vocab_size // 32)
        self._anything = Allowed(np.full(self._n_words, -1, dtype=np.int32))  # after a rejected token: nothing is kept
        self._octets = torch.where(_bits(), 0.0, HIDDEN)  # [256, 8]: what to add to the logits of 8 tokens
        self._compiler: Compiler | None = None
        self._compiled: OrderedDict[str, LLMatcher | str] = OrderedDict()  # or what is wrong; latest use last
        self._lock = Lock()
        self._states: dict[int, _State] = {}
        self._pending: dict[int, Future[dict[Row, Allowed]]] = {}
        self._failures: dict[Row, str] = {}
        self._workers = ThreadPoolExecutor(max(1, min(8, (os.cpu_count() or 1) // 2)), "noria-masks")

    def prepare(self, grammar: str) -> None:
        """Compile a grammar unless that is done."""
        self._matcher(grammar)

    def start(self, draws: Sequence[Sequence[Slice]]) -> None:
        """Begin on the masks for the draws of each sequence in a step. Forgets sequences that are not among them."""
        drawing = {views[0].sequence_id: views for views in draws if views and views[0].params.grammar is not None}
        self._failures.clear()
        self._states = {number: self._state(views[0]) for number, views in drawing.items()}
        self._pending = {
            number: self._workers.submit(state.masks, drawing[number]) for number, state in self._states.items()
        }

    def failure(self, draws: Sequence[Slice]) -> str | None:
        """Why no token could be drawn for one of these."""
        reasons = (self._failures.get((view.sequence_id, view.stop)) for view in draws) if self._failures else ()
        return next(filter(None, reasons), None)

    def _hide(self, logits: Tensor, slices: Sequence[Slice]) -> None:
        """Hide the tokens that are not allowed. A row that has none left keeps one, and is a failure."""
        rows = [(item.sequence_id, item.stop) for item in slices]
        allowed = [self._pending[row[0]].result().get(row, self._anything) for row in rows]
        words = torch.from_numpy(np.stack([item.words for item in allowed])).to(logits.device, non_blocking=True)
        self._octets = self._octets.to(logits.device)
        hidden = self._octets.index_select(0, words.view(torch.uint8).int().flatten()).view(len(rows), -1)
        logits += hidden[:, : logits.shape[1]]  # on a CPU ten times as fast as masked_fill_
        empty = logits.amax(dim=-1) == HIDDEN
        logits[:, 0].masked_fill_(empty, 0.0)
        for row, item, is_empty in zip(rows, allowed, empty.tolist(), strict=True):
            if item.failure or is_empty:
                self._failures[row] = item.failure or "the grammar and the request's other limits leave no token"

    def _state(self, view: Slice) -> "_State":
        state = self._states.get(view.sequence_id)
        if state is not None and state.awaits(view):
            return state
        return _State(self._matcher(view.params.grammar or ""), self._n_words)

    def _matcher(self, grammar: str) -> "LLMatcher | str":
        """The compiled grammar, or what is wrong with it. While it compiles other threads go on."""
        found = self._compiled.get(grammar) or self._compile(grammar)
        with self._lock:
            self._compiled[grammar] = found
            self._compiled.move_to_end(grammar)
            if len(self._compiled) > MAX_COMPILED:
                self._compiled.popitem(last=False)
        return found

    def _compile(self, grammar: str) -> "LLMatcher | str":
        try:
            self._compiler = self._compiler or self._load()
            return self._compiler.compile(grammar)
        except Exception as error:  # whatever it is, it is the trouble of the requests with this grammar alone
            return str(error)


class _State:
    """How far a sequence has come in its grammar. One that has failed stays so; a new one may do better."""

    def __init__(self, compiled: "LLMatcher | str", n_words: int) -> None:
        self._matcher = None if isinstance(compiled, str) else compiled.deep_copy()
        self._failure = compiled if isinstance(compiled, str) else None
        self._everything = np.full(n_words, -1, dtype=np.int32)
        self._taken = 0  # tokens of the output that the matcher knows
        self._seconds = 0.0

    def awaits(self, view: Slice) -> bool:
        """Whether the sequence has gone on since the last masks (a new one of the same number has not)."""
        return self._failure is None and view.stop - view.n_prompt > self._taken

    def masks(self, views: Sequence[Slice]) -> dict[Row, Allowed]:
        """What may follow the known tokens, and each token of the draft up to the first that may not be there."""
        began = time.thread_time()
        first = views[0]
        if self._matcher is not None:
            output = list(first.tokens[first.n_prompt + self._taken : first.stop])
            self._matcher.consume_tokens(output)
            self._taken += len(output)
        found: dict[Row, Allowed] = {}
        for view in views:
            if view is not first and not self._follow(view.tokens[view.stop - 1]):
                break
            found[view.sequence_id, view.stop] = self._allowed()
        if self._matcher is not None and self._failure is None:
            self._matcher.rollback(len(found) - 1)
        self._seconds += time.thread_time() - began
        return found

    def _follow(self, token: int) -> bool:
        """Take in a proposed token, if it may be."""
        if self._matcher is None or self._failure is not None or not self._matcher.validate_tokens([token]):
            return False
        return self._matcher.consume_token(token)

    def _allowed(self) -> Allowed:
        words = self._everything.copy()
        if self._seconds > BURST_SECONDS + TOKEN_SECONDS * self._taken:
            self._failure = f"the grammar took {self._seconds:.1f} s for {self._taken} tokens"
        if self._matcher is not None and self._failure is None:
            if not self._matcher.is_error():
                self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
            self._failure = problem(self._matcher) if self._matcher.is_error() else None
        return Allowed(words if self._failure is None else self._everything, self._failure)


def _bits() -> Tensor:
    """[256, 8] bool: bit j of octet i."""
    return (torch.arange(256)[:, None] >> torch.arange(8)) & 1 == 1
