"""Tensors that the ranks of a model send each other, over `torch.distributed`: gloo on CPUs, nccl on GPUs."""

from collections import deque
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch import distributed as dist

from model.sharding.layout import RankPlace

LARGE = 2**18
"""Values from which more than two ranks add a share each: they send less, but wait twice."""
IN_FLIGHT = 2
"""Sends to the next stage that may be unfinished, for each stage of the pipeline."""


class Group:
    """The other ranks of a model, for the rank at `place`. The process group is initialized already.

    The ranks of a stage call the same methods in the same order. Sums have one order of additions, that of the ranks:
    a row's bits do not depend on the number of rows. On a GPU only a `deterministic` group promises this, because
    nccl chooses its order by size. No call waits for a GPU.
    """

    def __init__(self, place: RankPlace, device: torch.device, *, deterministic: bool = False) -> None:
        self.place, self.device = place, device
        self._reduces = device.type == "cuda" and not deterministic
        self._stage = _stage_group(place)
        if device.type == "cuda":  # nccl: all ranks take part in the first operation, then any two may
            dist.all_reduce(torch.zeros(1, device=device))
        self._sends: deque[tuple[dist.Work, Tensor]] = deque()  # keep tensors alive until they are sent

    def sum(self, partial: Tensor) -> Tensor:
        """Sum the `partial` [T, dim] of each rank of the stage, in its place."""
        ranks = self.place.stage_ranks
        if len(ranks) == 1:
            return partial
        partial = partial.contiguous()
        if self._reduces:
            dist.all_reduce(partial, group=self._stage)
            return partial
        if len(ranks) == 2 or partial.numel() < LARGE:
            return add(self.gather_all(partial))
        return self.sum_by_shares(partial)

    def gather_all(self, own: Tensor) -> list[Tensor]:
        """Gather the tensors `own` of all ranks of the stage, in their order."""
        parts = [torch.empty_like(own) for _ in self.place.stage_ranks]
        parts[self.place.tensor_rank] = own
        self._exchange([own] * len(parts), parts)
        return parts

    def sum_by_shares(self, partial: Tensor) -> Tensor:
        """Do `sum`, where each rank adds one share of the values and sends the result to the others."""
        shares, own = partial.view(-1).tensor_split(len(self.place.stage_ranks)), self.place.tensor_rank
        parts = [torch.empty_like(shares[own]) for _ in shares]
        parts[own] = shares[own]
        self._exchange(shares, parts)
        shares[own].copy_(add(parts))
        self._exchange([shares[own]] * len(shares), shares)
        return partial

    def gather(self, columns: Tensor, widths: Sequence[int]) -> Tensor | None:
        """Gather the columns of the stage's ranks side by side, [N, sum of widths], on its first rank; None elsewhere.

        `columns` [N, widths[tensor_rank]] are those of this rank.
        """
        if len(widths) == 1:
            return columns
        first, columns = self.place.stage_ranks[0], columns.contiguous()
        if self.place.rank != first:
            self._finish([dist.P2POp(dist.isend, columns, first, self._stage)])
            return None
        parts = [columns, *(columns.new_empty(len(columns), width) for width in widths[1:])]
        others = zip(parts[1:], self.place.stage_ranks[1:], strict=True)
        self._finish([dist.P2POp(dist.irecv, part, rank, self._stage) for part, rank in others])
        return torch.cat(parts, dim=1)

    def send(self, hidden: Tensor) -> None:
        """Start to send hidden states [T, dim] to the next stage. Nobody may change them any more."""
        assert self.place.after is not None
        hidden = hidden.contiguous()
        (work,) = dist.batch_isend_irecv([dist.P2POp(dist.isend, hidden, self.place.after)])
        self._sends.append((work, hidden))
        while len(self._sends) > IN_FLIGHT * self.place.layout.pipeline:
            self._wait([self._sends.popleft()[0]])

    def receive(self, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
        """Receive hidden states [T, dim] of the stage before: those of its oldest `send` that has not been received."""
        assert self.place.before is not None
        hidden = torch.empty(shape, dtype=dtype, device=self.device)
        self._finish([dist.P2POp(dist.irecv, hidden, self.place.before)])
        return hidden

    def _exchange(self, sent: Sequence[Tensor], received: Sequence[Tensor]) -> None:
        """Send sent[i] to rank i of the stage, and receive received[i] from it."""
        others = [(i, rank) for i, rank in enumerate(self.place.stage_ranks) if rank != self.place.rank]
        sends = [dist.P2POp(dist.isend, sent[i], rank, self._stage) for i, rank in others]
        self._finish(sends + [dist.P2POp(dist.irecv, received[i], rank, self._stage) for i, rank in others])

    def _finish(self, operations: list[dist.P2POp]) -> None:
        self._wait(dist.batch_isend_irecv(operations))

    def _wait(self, works: Iterable[dist.Work]) -> None:
        """Wait until the works are done. On a GPU the current stream waits."""
        for work in works:
            work.wait()


def _stage_group(place: RankPlace) -> dist.ProcessGroup | None:
    """Make the group of the rank's stage. All ranks call this at once."""
    if place.layout.pipeline == 1:
        return dist.group.WORLD
    groups = {each.stage: each.stage_ranks for each in place.layout.places()}
    made = [dist.new_group(list(ranks)) for ranks in groups.values()]
    return made[place.stage]


def add(parts: Sequence[Tensor]) -> Tensor:
    """Add the parts in their order, in place of the first."""
    total, *others = parts
    for part in others:
        total.add_(part)
    return total
