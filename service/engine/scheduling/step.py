"""A step while the scheduler plans it, and until its result is committed."""

from model.batch import StepBatch
from service.engine.scheduling.images import ImagePlan
from service.engine.scheduling.prompt_lookup import DraftBudget
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

    @property
    def sampling(self) -> list[Sequence]:
        """The sequences that get a token, while it is the step in flight: their parts end with their last token."""
        parts = self.parts.items()
        return [item for item, (_, stop) in parts if stop == item.length and item.n_output < item.params.max_tokens]

    def batch(self) -> StepBatch:
        """The step as the runner gets it."""
        slices = (sequence.slice(stop, self.drafts.get(sequence, ())) for sequence, (_, stop) in self.parts.items())
        return StepBatch(tuple(slices), self.images.work, self.images.forgotten)

    def add(self, sequence: Sequence, n_tokens: int) -> None:
        self.parts[sequence] = (sequence.computed, sequence.computed + n_tokens)
        self.budget -= n_tokens

    def drop(self, sequence: Sequence) -> None:
        if sequence in self.parts:
            start, stop = self.parts.pop(sequence)
            self.budget += stop - start

    def assume_computed(self) -> None:
        """Let its sequences continue behind it."""
        for sequence, (_, stop) in self.parts.items():
            sequence.computed = stop

    def add_drafts(self, n_tokens: int, n_kept: int) -> int:
        """Add draft tokens that pay, from the budget and the pages that are left. Returns their number.

        The step has `n_tokens` before. `n_kept` pages stay for the sequences of other steps in flight, one for each.
        """
        added, pays = 0, DraftBudget(n_tokens)
        for sequence, (_, stop) in self.parts.items():
            params = sequence.params
            limit = min(params.prompt_lookup_num_tokens, params.max_tokens - sequence.n_output - 1)
            if limit < 1 or stop < sequence.length:
                continue
            draft = sequence.lookup.draft(sequence.tokens, limit)
            available = min(table.capacity() - n_kept * table.pool.page_size for table in sequence.tables) - stop
            n = pays.add(sequence.lookup.acceptance, min(len(draft), self.budget, available))
            if n:
                for table in sequence.tables:
                    table.grow(stop + n)
                self.drafts[sequence] = draft[:n]
                self.budget -= n
                added += n
        return added
