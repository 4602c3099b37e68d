"""The layout of a group of ranks: who splits layers with whom, and who comes before and after whom."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Layout:
    """How ranks share a model: `pipeline` stages of consecutive layers, each split between `tensor` ranks.

    With `experts`, a rank of a stage holds whole experts instead of a part of each.
    """

    tensor: int = 1
    pipeline: int = 1
    experts: bool = False

    @property
    def size(self) -> int:
        """Return the number of ranks."""
        return self.tensor * self.pipeline

    @property
    def name(self) -> str:
        """Name the layout for /version and the fingerprint, such as "tp2 pp2 ep"; "single" for one rank."""
        parts = (("tp", self.tensor), ("pp", self.pipeline))
        words = [f"{word}{number}" for word, number in parts if number > 1]
        return " ".join([*words, *(["ep"] if self.experts and self.tensor > 1 else [])]) or "single"

    @property
    def sampler(self) -> int:
        """Return the rank that samples tokens: the first of the last stage."""
        return self.tensor * (self.pipeline - 1)

    def place(self, rank: int) -> "RankPlace":
        return RankPlace(self, rank)

    def places(self) -> list["RankPlace"]:
        """Return all ranks in order."""
        return [RankPlace(self, rank) for rank in range(self.size)]


@dataclass(frozen=True, slots=True)
class RankPlace:
    """One rank of a layout. Ranks count stage by stage: with 2 x 2 ranks, 0 and 1 split the first stage."""

    layout: Layout
    rank: int

    @property
    def stage(self) -> int:
        return self.rank // self.layout.tensor

    @property
    def tensor_rank(self) -> int:
        """Return its number among the ranks of its stage."""
        return self.rank % self.layout.tensor

    @property
    def is_first(self) -> bool:
        """Return whether its stage has the embeddings."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """Return whether its stage has the last norm and the output head."""
        return self.stage == self.layout.pipeline - 1

    @property
    def samples(self) -> bool:
        """Return whether this rank samples tokens."""
        return self.rank == self.layout.sampler

    @property
    def stage_ranks(self) -> range:
        """Return the ranks of its stage, itself among them."""
        first = self.stage * self.layout.tensor
        return range(first, first + self.layout.tensor)

    @property
    def before(self) -> int | None:
        """Return the rank of the stage before whose hidden states it takes; None in the first stage."""
        return None if self.is_first else self.rank - self.layout.tensor

    @property
    def after(self) -> int | None:
        """Return the rank of the next stage that takes its hidden states; None in the last stage."""
        return None if self.is_last else self.rank + self.layout.tensor


SINGLE = Layout().place(0)
"""The only rank of a model that nobody shares."""
