"""The grammar of an answer that begins with a thought: its budget, its end, then the answer's own grammar.

The text of such a grammar is JSON (`Thinking.to_json`). Its matcher has the methods of llguidance's that `Follower`
calls. The allowed tokens depend only on the tokens before, so an answer is the same whoever else is served.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from model.grammar.vocabulary import Vocabulary, bits
from model.sampling_params import FREE_END
from model.tokenizers.pieces import n_begun

if TYPE_CHECKING:
    from llguidance import LLMatcher

CONSTRAINED = '{"end": "grammar"'
"""The beginning of a grammar with one for the answer."""
GRACE_TOKENS = 64
"""Tokens beyond the budget in which a sentence may end."""
MAX_GAP = 2
"""Characters of white space between a thought and a constrained answer."""
SPACE = b" \t\r\n"
TAIL = 32
"""Bytes of a thought that decide whether a sentence has ended."""
SENTENCE_END = re.compile(
    rb"""(?: (?:(?<![0-9])\.|[!?]|\xe2\x80\xa6|\xe3\x80\x82|\xef\xbc[\x81\x9f]) ["')\]*_`]* [ \t]* | \n\s* ) \Z""", re.X
)
"""A full stop (but not that of a number), or another end mark, perhaps before closing quotes; or the end of a line."""

Phase = Literal["before", "inside", "gap", "answer"]


@dataclass(frozen=True, slots=True)
class Thinking:
    """The rules of an answer with a thought.

    `phase` is "before" if the model opens its thought, "inside" if the prompt does, "answer" if it has ended. `budget`
    is in tokens, None for no limit. `answer` is the grammar of the answer as JSON, None for any text. An answer has one
    thought at most: an opening mark that is a control token is not allowed after text.
    """

    opening: str
    closing: str
    phase: Phase
    budget: int | None = None
    answer: str | None = None

    def to_json(self) -> str:
        about = json.dumps({key: value for key, value in asdict(self).items() if key != "answer"})
        if self.answer is None:
            return f'{FREE_END}, "thinking": {about}}}'
        return f'{CONSTRAINED}, "thinking": {about}, "answer": {self.answer}}}'

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """Invert `to_json`. None for any other grammar."""
        if not text.startswith((FREE_END, CONSTRAINED)):
            return None
        found = json.loads(text)
        return cls(**found["thinking"], answer=json.dumps(found["answer"]) if "answer" in found else None)


class ThinkingTables:
    """The tables that matchers of one vocabulary share: sets of tokens as integers with a bit for each token."""

    def __init__(self, vocabulary: Vocabulary, tokens_of: Any) -> None:
        self.pieces = vocabulary.pieces
        self.ends = frozenset(vocabulary.ends)
        self.control = {vocabulary.pieces[token]: token for token in vocabulary.control}
        self.n_octets = -(-len(self.pieces) // 32) * 4
        hidden = {*vocabulary.control, *vocabulary.ends}
        self.text = bits(n for n, piece in enumerate(self.pieces) if piece and n not in hidden)
        self.all = (1 << len(self.pieces)) - 1
        self.spaces = {n: piece.decode() for n, piece in enumerate(self.pieces) if piece and not piece.strip(SPACE)}
        self.tokens_of = tokens_of
        self.crossing = cache(self._crossing)
        self.continuing = cache(self._continuing)

    def _crossing(self, closing: bytes, n_matched: int) -> int:
        """Return the tokens with text after the end of a thought, whose last bytes are `closing[:n_matched]`."""
        last = closing[-1:]
        return bits(
            n
            for n, piece in enumerate(self.pieces)
            if last in piece and (closing[:n_matched] + piece).partition(closing)[2].strip(SPACE)
        )

    def _continuing(self, opening: bytes, before: bytes) -> int:
        """Return the tokens after `before` with which a text may still begin with `opening`, after white space."""
        first = opening[len(before) :][:1]
        near = (
            (n, (before + piece).lstrip())
            for n, piece in enumerate(self.pieces)
            if piece[:1] == first or (not before and piece[:1].isspace())
        )
        return self.text & bits(
            n for n, text in near if text and (opening.startswith(text) or text.startswith(opening))
        )


class ThinkingState(NamedTuple):
    """The state after some tokens. `n_thought` counts the tokens of the thought, `tail` are the last bytes that matter.

    `matcher` follows the answer; `alive` is False once it has not consumed a token that came.
    """

    phase: Phase
    n_thought: int
    tail: bytes
    matcher: "LLMatcher | None"
    alive: bool = True
    fed: bool = False  # whether the last token went to the matcher


class ThinkingMatcher:
    """A matcher of an answer with a thought. `answer` is the matcher of the answer at its start."""

    def __init__(self, thinking: Thinking, tables: ThinkingTables, answer: "LLMatcher | None") -> None:
        self._thinking = thinking
        self._tables = tables
        self._start = answer
        self._opening, self._closing = thinking.opening.encode(), thinking.closing.encode()
        self._opening_id = tables.control.get(self._opening)
        self._closing_id = tables.control.get(self._closing)
        self._states = [ThinkingState(thinking.phase, 0, b"", self._fresh())]
        self._error = ""

    def deep_copy(self) -> "ThinkingMatcher":
        """Copy the matcher in the starting state: nobody copies one that has consumed tokens."""
        assert len(self._states) == 1
        return ThinkingMatcher(self._thinking, self._tables, self._start)

    def is_stopped(self) -> bool:
        state = self._states[-1]
        return state.phase == "answer" and state.matcher is not None and state.matcher.is_stopped()

    def is_error(self) -> bool:
        return bool(self.get_error())

    def get_error(self) -> str:
        matcher = self._states[-1].matcher
        inner = matcher.get_error() if matcher is not None and matcher.is_error() else ""
        return self._error or inner

    def consume_tokens(self, tokens: Sequence[int]) -> bool:
        return all(self.consume_token(token) for token in tokens)

    def consume_token(self, token: int) -> bool:
        state = self._states[-1]
        follow = {"before": self._open, "inside": self._think, "gap": self._skip, "answer": self._answer}
        self._states.append(follow[state.phase](state, token))
        return not self.is_error()

    def rollback(self, n_tokens: int) -> bool:
        """Forget the last tokens."""
        undone = self._states[len(self._states) - n_tokens :]
        del self._states[len(self._states) - n_tokens :]
        matcher = self._states[-1].matcher
        if matcher is not None:  # another one began after these tokens, and ends here
            matcher.rollback(sum(state.fed and state.matcher is matcher for state in undone))
        return True

    def validate_tokens(self, tokens: Sequence[int]) -> int:
        """Return 1 if the first token is allowed, else 0."""
        return self._allowed() >> tokens[0] & 1

    def compute_bitmask(self) -> bytes:
        """Return the tokens that may come next, a bit each, lowest first."""
        return self._allowed().to_bytes(self._tables.n_octets, "little")

    def _fresh(self) -> "LLMatcher | None":
        return None if self._start is None else self._start.deep_copy()

    # What is allowed

    def _allowed(self) -> int:
        state = self._states[-1]
        if state.phase == "inside":
            return self._allowed_inside(state)
        allowed = self._allowed_answer(state)
        if state.phase == "before":
            return allowed | self._opening_tokens(state)
        if state.phase == "gap":
            room = MAX_GAP - len(state.tail)
            return allowed | bits(n for n, text in self._tables.spaces.items() if len(text) <= room)
        return allowed

    def _allowed_answer(self, state: ThinkingState) -> int:
        if state.matcher is None:
            return self._tables.all & ~(0 if self._opening_id is None else 1 << self._opening_id)
        return int.from_bytes(state.matcher.compute_bitmask(), "little") if state.alive else 0

    def _opening_tokens(self, state: ThinkingState) -> int:
        if self._opening_id is not None:
            return 1 << self._opening_id
        return self._tables.continuing(self._opening, state.tail)

    def _allowed_inside(self, state: ThinkingState) -> int:
        if self._is_over(state):
            return 1 << self._next_of_closing(state)
        closing = 0 if self._closing_id is None else 1 << self._closing_id
        crossing = 0
        if self._closing_id is None and self._start is not None:
            crossing = self._tables.crossing(self._closing, n_begun(state.tail, self._closing))
        return (self._tables.text | closing) & ~crossing

    def _is_over(self, state: ThinkingState) -> bool:
        """Return whether the thought must end here: its budget is used up, and a sentence or the grace has ended."""
        budget = self._thinking.budget
        if budget is None or state.n_thought < budget:
            return False
        begun = bool(self._closing_id is None and n_begun(state.tail, self._closing))
        ended = SENTENCE_END.search(state.tail) is not None
        return budget == 0 or ended or begun or state.n_thought >= budget + GRACE_TOKENS

    def _next_of_closing(self, state: ThinkingState) -> int:
        """Return the next token of the forced end of the thought."""
        if self._closing_id is not None:
            return self._closing_id
        rest = self._closing[n_begun(state.tail, self._closing) :]
        token: int = self._tables.tokens_of(rest.decode())[0]
        return token

    # What a token changes

    def _open(self, state: ThinkingState, token: int) -> ThinkingState:
        if token == self._opening_id:
            return ThinkingState("inside", 0, b"", self._fresh())
        text = (state.tail + self._tables.pieces[token]).lstrip()
        if self._opening_id is None and text.startswith(self._opening):
            return self._thought(ThinkingState("inside", 0, b"", self._fresh()), text.removeprefix(self._opening), 0)
        after = self._answer(state, token, strict=False)
        waits = self._opening.startswith(text) if self._opening_id is None else not text and after.alive
        if waits and token not in self._tables.ends:
            return after._replace(phase="before", tail=text)
        if not after.alive:
            self._error = "the token is not allowed"
        return after

    def _think(self, state: ThinkingState, token: int) -> ThinkingState:
        if token == self._closing_id:
            return ThinkingState("answer", state.n_thought + 1, b"", state.matcher)
        return self._thought(state, self._tables.pieces[token], 1)

    def _thought(self, state: ThinkingState, piece: bytes, n_tokens: int) -> ThinkingState:
        """Return the state after bytes of a thought, which may end in them."""
        text, n_thought = state.tail + piece, state.n_thought + n_tokens
        if self._closing_id is None and self._closing in text:
            rest = text.partition(self._closing)[2]
            phase: Phase = "gap" if self._start is not None else "answer"
            return ThinkingState(phase, n_thought, rest, state.matcher)
        return ThinkingState("inside", n_thought, text[-TAIL:], state.matcher)

    def _skip(self, state: ThinkingState, token: int) -> ThinkingState:
        """Return the state after a token behind the thought: the answer begins, or white space is skipped."""
        after = self._answer(state, token, strict=False)
        if after.fed or token not in self._tables.spaces:
            return after if after.fed else self._answer(state, token)
        return state._replace(tail=state.tail + self._tables.pieces[token], fed=False)

    def _answer(self, state: ThinkingState, token: int, *, strict: bool = True) -> ThinkingState:
        """Let the matcher consume a token. Without `strict` a token that it does not allow ends it."""
        matcher, alive = state.matcher, state.alive
        fed = False
        if matcher is not None and alive:
            alive = strict or bool(matcher.validate_tokens([token]))
            fed = alive and bool(matcher.consume_token(token))
        return ThinkingState("answer", state.n_thought, b"", matcher, alive, fed or (matcher is None))
