"""The state of a sequence in its grammar, and the tokens that may come next. No torch."""

import time
from collections.abc import Collection, Sequence
from functools import reduce
from typing import TYPE_CHECKING, TypeAlias

from model.errors import MAX_CHARS
from model.grammar.numbers import Numbers
from model.grammar.thinking import ThinkingMatcher

if TYPE_CHECKING:
    from llguidance import LLMatcher

Matcher: TypeAlias = "LLMatcher | ThinkingMatcher"

BURST_SECONDS, TOKEN_SECONDS = 1.0, 0.01
"""Processor time for the masks of one sequence. An ambiguous grammar needs more time at every token."""


class GrammarFollower:
    """The state of one sequence in its grammar: a matcher that has consumed the sequence's tokens.

    `ends` are the tokens that end an output. `numbers` bounds the numbers of a grammar for JSON.
    """

    def __init__(self, matcher: Matcher, ends: Collection[int] = (), numbers: Numbers | None = None) -> None:
        self._matcher = matcher.deep_copy()
        self._ends = ends
        self._numbers = numbers
        self._tail = b""
        self._n_tokens = 0
        self._seconds = 0.0

    @property
    def stopped(self) -> bool:
        """Return whether nothing but the end of the output may follow, or it has come."""
        return self._matcher.is_stopped()

    def forced(self) -> list[int]:
        """Return the tokens that must come next, as far as the grammar knows."""
        return [] if isinstance(self._matcher, ThinkingMatcher) else self._matcher.compute_ff_tokens()

    def masks(self, tokens: Sequence[int], draft: Sequence[int]) -> tuple[list[bytes], str]:
        """Consume `tokens`; return masks of the tokens that may come after them and after each token of the draft.

        A mask has a bit for each token of the vocabulary, lowest bit first. Masks end before the first draft token that
        the grammar does not allow, or at a fault of the grammar, which is returned too ("" if there is none). The draft
        is not consumed.
        """
        started = time.thread_time()
        self._matcher.consume_tokens(list(tokens))
        self._n_tokens += len(tokens)
        tail = self._tail = reduce(self._after, tokens, self._tail)
        masks = [] if self._fault() else [self._mask(tail)]
        for token in draft:
            # nothing follows an end token, and llguidance does not count it when it goes back
            if token in self._ends or self._fault() or not self._matcher.validate_tokens([token]):
                break
            self._matcher.consume_token(token)
            tail = self._after(tail, token)
            masks.append(self._mask(tail))
        fault = self._fault()
        if fault:
            del masks[-1:]
        else:
            self._matcher.rollback(len(masks) - 1)
        self._seconds += time.thread_time() - started
        return masks, fault

    def _after(self, tail: bytes, token: int) -> bytes:
        return self._numbers.tail(tail, token) if self._numbers else b""

    def _mask(self, tail: bytes) -> bytes:
        mask = self._matcher.compute_bitmask()
        return self._numbers.bounded(mask, tail) if self._numbers else mask

    def _fault(self) -> str:
        if self._seconds > BURST_SECONDS + TOKEN_SECONDS * self._n_tokens:
            return f"the grammar took {self._seconds:.1f} s for {self._n_tokens} tokens"
        return problem(self._matcher) if self._matcher.is_error() else ""


# Wording: the library has these sentences, and no code, for what is wrong.
OURS = {
    "NoExtensionBias": "no token can follow",
    "Regex is empty": "no text has this pattern, format and length",
    **dict.fromkeys(("Too many items", "too many states"), "it becomes too complex"),
}
"""Words of the library about its options or its inside -> what is wrong, for a client."""


def problem(matcher: Matcher) -> str:
    """Return a sentence about the error of a matcher, on one line."""
    # Wording: the library puts this word where verbose errors would stand; no argument leaves it out.
    text = " ".join(matcher.get_error().replace("<non-verbose/>", "").split())[:MAX_CHARS]
    return next((sentence for words, sentence in OURS.items() if words in text), text)
