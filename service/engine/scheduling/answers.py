"""Draft tokens from earlier answers of the same key and cache_salt: agents write the same files and calls again."""

from array import array
from collections import OrderedDict
from collections.abc import Sequence

from service.engine.scheduling.prompt_lookup import ACCEPTANCE_SMOOTHING

MATCHES = (3, 6, 12, 24)
"""Acceptance is learned for each of these numbers of tokens that match before a draft token. Fewer are no match."""
FIRST_ACCEPTANCES = (0.4, 0.6, 0.8, 0.9)
MAX_TOKENS, MAX_TENANTS = 2**15, 64
"""Tokens of a tenant's answers in memory, and tenants: 4 MB each at most."""
END = -1
"""Stands behind each answer. It is no token."""


class Answers:
    """The latest answers of one tenant, one after the other, and the places behind each three tokens."""

    def __init__(self) -> None:
        self.tokens = array("i")
        self._behind: dict[tuple[int, ...], int] = {}

    def add(self, answer: Sequence[int]) -> None:
        """Note an answer. The older half goes when there are too many tokens."""
        if len(answer) <= MATCHES[0]:
            return
        if len(self.tokens) + len(answer) >= MAX_TOKENS:
            older, self.tokens, self._behind = self.tokens[1 - MAX_TOKENS // 2 :], array("i"), {}
            self._append(older)
        self._append(array("i", [*answer[-MAX_TOKENS // 2 :], END]))

    def _append(self, tokens: "array[int]") -> None:
        self.tokens += tokens
        for end in range(len(self.tokens) - len(tokens) + MATCHES[0], len(self.tokens)):
            self._behind[tuple(self.tokens[end - MATCHES[0] : end])] = end

    def find(self, tokens: Sequence[int]) -> tuple[int, int]:
        """Return the place behind the latest tokens like the last of `tokens`, and how many match; (0, 0) without."""
        place = self._behind.get(tuple(tokens[-MATCHES[0] :]), 0)
        if not place:
            return 0, 0
        most = min(place, len(tokens), MATCHES[-1])
        own, last = self.tokens[place - most : place], tokens[-most:]
        return place, next((n for n in range(MATCHES[0], most) if own[-1 - n] != last[-1 - n]), most)


class Library:
    """The answers of the tenants that were used last."""

    def __init__(self) -> None:
        self._answers: OrderedDict[tuple[str, bytes], Answers] = OrderedDict()

    def of(self, tenant: str, seed: bytes) -> Answers:
        """Return the answers of a tenant for requests whose pages begin with this `seed`: one salt, one adapter."""
        found = self._answers.setdefault((tenant, seed), Answers())
        self._answers.move_to_end((tenant, seed))
        if len(self._answers) > MAX_TENANTS:
            self._answers.popitem(last=False)
        return found


class AnswerLookup:
    """Drafts the tokens that followed in an earlier answer, and learns how many are accepted."""

    name, has_passes = "answers", False

    def __init__(self, answers: Answers) -> None:
        self.chances: list[float] = []
        self._answers = answers
        self._acceptances = list(FIRST_ACCEPTANCES)
        self._draft: list[int] = []
        self._levels: list[int] = []

    def draft(self, tokens: Sequence[int], n_tokens: int) -> list[int]:
        """See `Drafter`."""
        place, matched = self._answers.find(tokens)
        followed = self._answers.tokens[place : place + n_tokens].tolist() if place else []
        self._draft = followed[: followed.index(END)] if END in followed else followed
        self._levels = [_level(matched + n) for n in range(len(self._draft))]
        self.chances = [self._acceptances[level] for level in self._levels]
        return self._draft

    def observe(self, sampled: Sequence[int], n_verified: int) -> None:
        """See `Drafter`. Tokens that were not verified are compared as well."""
        for draft, token, level in zip(self._draft, sampled, self._levels, strict=False):
            self._acceptances[level] += ACCEPTANCE_SMOOTHING * ((draft == token) - self._acceptances[level])
            if draft != token:
                break
        self._draft, self._levels = [], []


def _level(matched: int) -> int:
    return sum(matched >= least for least in MATCHES) - 1
