"""The text of a choice while its tokens arrive: whole UTF-8 sequences, without stop strings, the thought apart."""

import codecs
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from model.tokenizers.base import Tokenizer
from model.tokenizers.pieces import n_begun
from service.generation.thinking import Reasoning, ThoughtReader


class Released(NamedTuple):
    """New text, the place in the whole text where each token that it completes starts, and the thought's new text."""

    text: str
    starts: tuple[int, ...]
    thought: str = ""


class TextStream:
    """The text of one choice: `push` adds a token, `take` returns new text. `stopped_by` is the stop string at its end.

    Text that may be the beginning of a stop string waits until more text decides, unless stop strings are part of the
    text (`include_stop`). Matching goes by characters: the boundaries of tokens do not change where the text ends.
    The text of the first `min_tokens` tokens is not searched. An incomplete UTF-8 sequence at the end is dropped.
    `reasoning` tells where a thought may be. Stop strings end answers only, not thoughts.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        stops: Sequence[str] = (),
        *,
        min_tokens: int = 0,
        include_stop: bool = False,
        strip_leading_space: bool = False,
        keep_control: bool | frozenset[str] = False,
        reasoning: Reasoning | None = None,
    ) -> None:
        self.stopped_by: str | None = None
        self._thought = None if reasoning is None else ThoughtReader(reasoning)
        self._bytes_of = tokenizer.bytes_of(keep_control=keep_control)
        self._stops = stops
        self._begun = [""] * len(stops)  # of each stop string, what the text ends with
        self._min_tokens = min_tokens
        self._include_stop = include_stop
        self._strip = strip_leading_space
        self._incomplete = b""  # the beginning of a character
        self._pending = ""
        self.length = 0  # characters decoded so far, taken or not
        self._pushed = 0
        self._open: list[int] = []  # starts of tokens that end with an incomplete character
        self._closed: deque[tuple[int, int]] = deque()  # (start, end) of tokens not taken yet
        self._ended = False

    @property
    def n_thought(self) -> int:
        """Return the number of tokens of the thought so far."""
        return 0 if self._thought is None else self._thought.n_tokens

    def push(self, token: int) -> bool:
        """Add a token. True if it completes a stop string: the text ends, and no token may follow."""
        if self._thought is None:
            return self._add(self._bytes_of(token))
        return any(map(self._add, self._thought.push(token, self._bytes_of(token))))

    def _add(self, piece: bytes) -> bool:
        """Add the bytes of a token of the answer; see `push`."""
        data = self._incomplete + piece
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._incomplete = data[used:]
        if self._strip and text:
            text, self._strip = text.removeprefix(" "), False
        self._pushed += 1
        self._open.append(self.length)
        self._pending += text
        self.length += len(text)
        if not self._incomplete:
            self._close()
        if self._pushed > self._min_tokens and self._stops:
            self._search(text)
        return self._ended

    def take(self, *, final: bool = False) -> Released:
        """Return the new text that cannot become a stop string, and the thought's; with `final`, all that is left."""
        final = final or self._ended
        if final and self._thought is not None:
            any(map(self._add, self._thought.flush()))  # nothing follows a stop string
        if final:
            self._close()
        n_matched = 0 if final or self._include_stop else max(map(len, self._begun), default=0)
        n_safe = len(self._pending) - n_matched
        text, self._pending = self._pending[:n_safe], self._pending[n_safe:]
        limit = self.length - n_matched
        starts = []
        while self._closed and self._closed[0][1] <= limit:
            starts.append(self._closed.popleft()[0])
        return Released(text, tuple(starts), "" if self._thought is None else self._thought.take())

    def _close(self) -> None:
        for start in self._open:
            self._closed.append((start, self.length))
        self._open.clear()

    def _search(self, text: str) -> None:
        """Look for the stop string that ends first, and of those that end together for the longest."""
        texts = [begun + text for begun in self._begun]
        pairs = [*zip(texts, self._stops, strict=True)]
        if found := [(len(own) - own.find(stop) - len(stop), len(stop), stop) for own, stop in pairs if stop in own]:
            n_after, n_stop, self.stopped_by = max(found)
            self._cut(n_after + (0 if self._include_stop else n_stop))
        else:
            self._begun = [own[len(own) - n_begun(own, stop) :] for own, stop in pairs]

    def _cut(self, n_chars: int) -> None:
        """Cut `n_chars` from the end of the text, and the tokens that have no text left."""
        self._close()
        self._ended = True
        self._pending = self._pending[: len(self._pending) - n_chars]
        self.length -= n_chars
        self._closed = deque((start, min(end, self.length)) for start, end in self._closed if start < self.length)
