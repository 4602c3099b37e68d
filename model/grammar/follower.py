"""Sequences that follow grammars: one matcher each, brought up to the sequence's tokens. No torch."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from model.grammar.compiler import problem

if TYPE_CHECKING:
    from llguidance import LLMatcher

BURST_SECONDS, TOKEN_SECONDS = 1.0, 0.01
"""Processor time that one sequence may spend on its masks: an ambiguous grammar costs more with every token."""


class Follower:
    """How far one sequence has come in its grammar."""

    def __init__(self, matcher: "LLMatcher") -> None:
        self._matcher = matcher.deep_copy()
        self._n_tokens = 0
        self._seconds = 0.0

    @property
    def stopped(self) -> bool:
        """Only the end is left, or came."""
        return self._matcher.is_stopped()

    def masks(self, tokens: Sequence[int], draft: Sequence[int]) -> tuple[list[bytes], str]:
        """What may come after the `tokens`, which are new and known, and after each token of the draft that may come.

        A bit for each token of the vocabulary, the first in the lowest; and why there are no more masks, if that is
        the grammar's fault. A draft leaves nothing behind, except such a fault.
        """
        began = time.thread_time()
        self._matcher.consume_tokens(list(tokens))
        self._n_tokens += len(tokens)
        found = [] if self._fault() else [self._matcher.compute_bitmask()]
        for token in draft:
            if self._fault() or not self._matcher.validate_tokens([token]):
                break
            self._matcher.consume_token(token)
            found.append(self._matcher.compute_bitmask())
        fault = self._fault()
        if fault:
            del found[-1:]
        else:
            self._matcher.rollback(len(found) - 1)
        self._seconds += time.thread_time() - began
        return found, fault

    def _fault(self) -> str:
        if self._seconds > BURST_SECONDS + TOKEN_SECONDS * self._n_tokens:
            return f"the grammar took {self._seconds:.1f} s for {self._n_tokens} tokens"
        return problem(self._matcher) if self._matcher.is_error() else ""
