"""The tokens of a sequence by id. No step walks over all earlier tokens: only new ones are counted."""

from array import array
from collections.abc import Sequence
from itertools import count


class TokenCounts:
    """The distinct tokens of a sequence, `ids`, and how often each is in its output, `outputs`.

    It belongs to one sequence, whose known tokens only grow. A sampling step counts the tokens that are new.
    """

    __slots__ = ("_n", "_places", "ids", "outputs")

    def __init__(self) -> None:
        self.ids, self.outputs = array("q"), array("q")
        self._places: dict[int, int] = {}  # token -> its place in `ids`
        self._n = 0

    def grow(self, tokens: Sequence[int], n_prompt: int, stop: int) -> None:
        """Count the tokens up to `stop` that are not counted yet. The first call counts the prompt, too."""
        if not self._n:
            self._places = dict(zip(dict.fromkeys(tokens[:n_prompt]), count(), strict=False))
            self.ids, self.outputs = array("q", self._places), array("q", bytes(8 * len(self._places)))
            self._n = n_prompt
        for token in tokens[self._n : stop]:
            place = self._places.setdefault(token, len(self.ids))
            if place == len(self.ids):
                self.ids.append(token)
                self.outputs.append(0)
            self.outputs[place] += 1
        self._n = max(self._n, stop)

    def copy(self) -> "TokenCounts":
        """Copy the counts, to go on with draft tokens."""
        made = TokenCounts()
        made.ids, made.outputs = self.ids[:], self.outputs[:]
        made._places, made._n = self._places.copy(), self._n
        return made
