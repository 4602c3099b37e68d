"""Prompt lookup: draft a sequence's next tokens from its earlier ones (arXiv 2304.04487)."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import cycle, islice

MATCHES = (1, 2, 4, 8)
"""Acceptance is learned for each of these numbers of tokens that repeat before a draft token. More are not compared.
1 stands for a draft that goes on behind a rejected token."""
FIRST_ACCEPTANCES = (0.2, 0.5, 0.75, 0.9)
"""The acceptances that were measured over 38 recorded answers."""
CANDIDATES = 8
"""Places, the latest, among which a longer match is looked for. More found nothing."""
ACCEPTANCE_SMOOTHING = 1 / 8
LEVELS = tuple(bisect_right(MATCHES, n) - 1 for n in range(1, MATCHES[-1] + 1))
"""`LEVELS[n - 1]`: index of the greatest of `MATCHES` that is at most n."""


class PromptLookup:
    """Drafts the tokens that followed an earlier place like the end of the text, and learns how many are accepted.

    The place is that with the longest match before it, of two or more tokens. Without one, it is the place behind the
    draft token that was just rejected, as in a copy with one word changed. Otherwise there is no draft: of those after
    one repeated token, 1 in 17 was accepted. Draft tokens that were never computed are compared as well, because that
    costs nothing. O(1) a token. No draft has the token `placeholder`, which stands for embeddings in a prompt: what
    followed it there follows it in no answer.
    """

    name, has_passes = "prompt_lookup", False

    def __init__(self, placeholder: int | None = None) -> None:
        self.acceptances = list(FIRST_ACCEPTANCES)  # chance that a draft token is accepted if all before it are
        self._placeholder = placeholder
        self._after_pair: dict[tuple[int, int], int] = {}  # two tokens -> the position after their latest occurrence
        self._earlier = [0, 0]  # for a position: that after the occurrence of its two tokens before; 0 is none
        self._source = 0  # where the latest draft comes from
        self._behind = 0  # where to go on after a draft token that was rejected; 0 is nowhere
        self._draft: list[int] = []
        self._levels: list[int] = []

    @property
    def chances(self) -> list[float]:
        """Return for each token of the latest draft the chance that it is accepted if all before it are."""
        return [self.acceptances[level] for level in self._levels]

    def draft(self, tokens: Sequence[int], n_tokens: int) -> list[int]:
        """Predict up to `n_tokens` draft tokens after `tokens`, which only ever grow. A repetition is continued."""
        self._index(tokens)
        self._source, matched = self._find(tokens)
        self._behind = 0
        followed = tokens[self._source : self._source + n_tokens] if self._source else []
        if self._placeholder in followed:
            followed = followed[: followed.index(self._placeholder)]
            n_tokens = len(followed)
        self._draft = list(islice(cycle(followed), n_tokens))
        lengths = range(matched, matched + len(self._draft))
        self._levels = [LEVELS[min(length, len(LEVELS)) - 1] for length in lengths]
        return self._draft

    def observe(self, sampled: Sequence[int], n_verified: int = 0) -> None:
        """Compare the latest draft with the tokens that were then sampled, however many of it the step verified."""
        for n, (draft, token, level) in enumerate(zip(self._draft, sampled, self._levels, strict=False), start=1):
            self.acceptances[level] += ACCEPTANCE_SMOOTHING * ((draft == token) - self.acceptances[level])
            if draft != token and level:
                self._behind = self._source + n
        self._draft, self._levels = [], []

    def _index(self, tokens: Sequence[int]) -> None:
        """Note what stands before each position of `tokens` that is new. Nothing is noted before the placeholder."""
        for end in range(len(self._earlier), len(tokens)):
            pair = tokens[end - 2], tokens[end - 1]
            self._earlier.append(self._after_pair.get(pair, 0))
            if tokens[end] != self._placeholder:
                self._after_pair[pair] = end

    def _find(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Return the position of the first token to draft (0: none), and the number of tokens that match before it."""
        best = matched = 0
        place = self._after_pair.get((tokens[-2], tokens[-1]), 0) if len(tokens) > 1 else 0
        for _ in range(CANDIDATES):
            if not place or matched == len(LEVELS):
                break
            length = _common(tokens, place)
            if length > matched:
                best, matched = place, length
            place = self._earlier[place]
        return (best, matched) if best else (self._behind, 1)


def _common(tokens: Sequence[int], end: int) -> int:
    """Count the tokens before position `end` that are those at the end of the text, at most `len(LEVELS)`."""
    most = min(len(LEVELS), end)
    return next((n for n in range(most) if tokens[end - 1 - n] != tokens[-1 - n]), most)
