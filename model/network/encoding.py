"""The base of encoders of images and audio: they work in pieces, for a step of the engine may do a part of an item.

P is the number of patches of a media item: squares of an image, or positions of a chunk of audio.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from model.attention.encoder import EncoderAttention, encoder_attention
from model.kernels.cpu import native
from model.kernels.cpu.functions import Kernels
from model.linear.schemes import SCHEMES
from model.machine.transfers import send

TILE = 256
"""Patches, or tokens of the text model, that are computed at once."""


@dataclass(slots=True)
class Encoding:
    """An item that is being encoded. `done` units of work are done; the first i units cost `costs[i]`.

    `inputs` are what the patches are computed from, and `patch_ids` [tokens, n] the patches of each token. `x` [P, dim]
    are hidden states, `attention` has q, k and v of the current layer. `embeddings` [tokens, dim of the text model] are
    complete when all units are done.
    """

    inputs: Tensor
    patch_ids: Tensor
    x: Tensor
    attention: EncoderAttention
    embeddings: Tensor
    costs: Sequence[int]
    done: int = 0

    @property
    def n_patches(self) -> int:
        return len(self.x)

    @property
    def n_units(self) -> int:
        return len(self.costs) - 1

    @property
    def complete(self) -> bool:
        return self.done == self.n_units


class Encoder(nn.Module, ABC):
    """The bytes of a media item to embeddings of a text model of `dim`.

    The work on an item is divided into units, in order: the first hidden states of each tile of patches; in each layer
    q, k and v of each tile, then the other parts of the layer for each tile; the embeddings for each tile of tokens.
    The units depend on the item alone. The bits of its embeddings depend therefore on nothing else: neither on the
    steps among which its work is divided, nor on other items.
    """

    layers: nn.ModuleList

    def __init__(self, dim: int, scheme: str, kernels: Kernels | None) -> None:
        super().__init__()
        self.dim = dim
        self._compiled = SCHEMES[scheme].compiled
        self._kernels = native.needed() if self._compiled else kernels

    @property
    @abstractmethod
    def weight(self) -> Tensor:
        """Return a weight, which has the type and the device of hidden states."""

    @abstractmethod
    def begin(self, inputs: bytes | memoryview, rows: int, columns: int) -> Encoding:
        """Begin the encoding of an item of `rows` x `columns` tokens; see `MediaWork.inputs`.

        Raises ValueError for another number of bytes.
        """

    @abstractmethod
    def first(self, encoding: Encoding, tile: slice) -> Tensor:
        """Compute the first hidden states [n, dim] of a tile of patches."""

    @abstractmethod
    def join(self, x: Tensor) -> Tensor:
        """Join hidden states [n, patches of a token, dim] -> embeddings [n, dim of the text model]."""

    @abstractmethod
    def costs(self, n_patches: int) -> tuple[int, int, int, int]:
        """Count multiplications: of a patch for its first state, q, k and v, other parts; of a token for its end."""

    def advance(self, encoding: Encoding, stop: int) -> None:
        """Compute the units that begin within the share `stop` / `n_patches` of the cost of all.

        Units already computed are not repeated. A unit that raises can be.
        """
        target = encoding.costs[-1] * stop
        while not encoding.complete and encoding.costs[encoding.done] * encoding.n_patches < target:
            self._compute(encoding, encoding.done)
            encoding.done += 1

    def forward(self, inputs: bytes | memoryview, rows: int, columns: int) -> Tensor:
        """Compute the embeddings [rows * columns, dim] of an item, all at once; see `begin`."""
        encoding = self.begin(inputs, rows, columns)
        self.advance(encoding, encoding.n_patches)
        return encoding.embeddings

    def begun(self, inputs: Tensor, patch_ids: Tensor, rotations: Tensor, n_heads: int, width: int) -> Encoding:
        """Make an encoding with nothing done. `rotations` [P, 2, head_dim/2], `width` of hidden states."""
        n_patches, n_tokens, weight = len(rotations), len(patch_ids), self.weight
        first, project, complete, end = self.costs(n_patches)
        tiles = _tiles(n_patches)
        layers = ([project] * tiles + [complete] * tiles) * len(self.layers)
        return Encoding(
            inputs=inputs,
            patch_ids=patch_ids,
            x=weight.new_empty(n_patches, width),
            attention=encoder_attention(
                send(rotations, weight.device),
                n_heads,
                torch.bfloat16 if self._compiled else weight.dtype,
                self._kernels,
            ),
            embeddings=weight.new_empty(n_tokens, self.dim),
            costs=[*accumulate([first] * tiles + layers + [end] * _tiles(n_tokens), initial=0)],
        )

    def _compute(self, encoding: Encoding, unit: int) -> None:
        """Compute one unit. There are no more tiles of tokens than of patches."""
        stage, number = divmod(unit, _tiles(encoding.n_patches))
        tile = slice(number * TILE, (number + 1) * TILE)
        layer, second = divmod(stage - 1, 2)
        if stage == 0:
            encoding.x[tile] = self.first(encoding, tile)
        elif layer == len(self.layers):
            encoding.embeddings[tile] = self.join(encoding.x[encoding.patch_ids[tile]])
        else:
            block: Any = self.layers[layer]
            work = encoding.x[tile], tile.start, encoding.attention
            if second:
                encoding.x[tile] = block.complete(*work)
            else:
                block.project(*work)


def _tiles(n: int) -> int:
    return -(-n // TILE)
