"""How many tokens each expert has computed: the numbers that the blocks count, brought to the host."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from model.network.moe import MoE

Counts = tuple[tuple[int, ...], ...]
"""Tokens of each expert of each layer; empty for a dense layer."""


class ExpertLoad:
    """The counts of a network's `layers`.

    The host never waits for a device. `read` starts a copy and returns what the copy before it brought: on a device
    its numbers are those of the call before.
    """

    def __init__(self, layers: Iterable[nn.Module]) -> None:
        blocks = [layer.feed_forward for layer in layers]
        self._loads: list[Tensor | None] = [block.load if isinstance(block, MoE) else None for block in blocks]
        self._sparse = [load for load in self._loads if load is not None]
        self._copy: Tensor | None = None  # [sparse layers, n_experts] in pinned memory
        self._copied: torch.cuda.Event | None = None
        self._last = [[0] * len(load) for load in self._sparse]

    def forget(self) -> None:
        """Count from here on."""
        for load in self._sparse:
            load.zero_()

    def read(self) -> Counts:
        """The counts since `forget`; () for a network without experts."""
        if not self._sparse:
            return ()
        rows = iter(self._from_device() if self._sparse[0].is_cuda else [load.tolist() for load in self._sparse])
        return tuple(() if load is None else tuple(next(rows)) for load in self._loads)

    def _from_device(self) -> list[list[int]]:
        if self._copy is None or self._copied is None:
            self._copy = torch.zeros(len(self._sparse), len(self._sparse[0]), dtype=torch.int64, pin_memory=True)
            self._copied = torch.cuda.Event()
        elif not self._copied.query():
            return self._last
        self._last = self._copy.tolist()
        self._copy.copy_(torch.stack(self._sparse), non_blocking=True)
        self._copied.record()
        return self._last
