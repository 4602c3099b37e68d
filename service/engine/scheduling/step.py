"""A step while the scheduler plans it, and until its result is committed."""

from service.engine.scheduling.images import ImagePlan
from service.engine.scheduling.sequence import Sequence


class Step:
    """A planned step: `parts` has first and end position of each sequence, `drafts` the draft tokens after them.

    `images` is its work on images, once all is planned.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.parts: dict[Sequence, tuple[int, int]] = {}
        self.drafts: dict[Sequence, list[int]] = {}
        self.images = ImagePlan((), (), waits=False)

    @property
    def encoded(self) -> frozenset[int]:
        """Numbers of the images on which there is work."""
        return frozenset(work.image for work in self.images.work)

    def add(self, sequence: Sequence, n_tokens: int) -> None:
        self.parts[sequence] = (sequence.computed, sequence.computed + n_tokens)
        self.budget -= n_tokens

    def drop(self, sequence: Sequence) -> None:
        if sequence in self.parts:
            start, stop = self.parts.pop(sequence)
            self.budget += stop - start
