"""The image encoder, which works in pieces: a step of the engine may do a part of an image.

P is the number of patches of an image.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from model.attention.image import ImageAttention, image_attention
from model.kernels.cpu import native
from model.kernels.cpu.functions import Kernels
from model.linear.base import RMSNorm
from model.linear.schemes import SCHEMES
from model.linear.selection import make_linear
from model.network.vision.adapter import Adapter
from model.network.vision.block import VisionBlock
from model.network.vision.patches import normalize, rotations, unfold
from model.vision_config import VisionConfig

TILE = 256
"""Patches, or tokens in the adapter, that are computed at once."""


@dataclass(slots=True)
class Encoding:
    """An image that is being encoded. `done` units of work are done; the first i units cost `costs[i]`.

    `patches` [P, 3 * patch_size^2] uint8 are row by row, `patch_ids` [rows * columns, merge * merge] those of each
    token. `x` [P, dim] are hidden states, `attention` has q, k and v of the current layer. `embeddings`
    [rows * columns, dim of the text model] are complete when all units are done.
    """

    patches: Tensor
    patch_ids: Tensor
    x: Tensor
    attention: ImageAttention
    embeddings: Tensor
    costs: Sequence[int]
    done: int = 0

    @property
    def n_patches(self) -> int:
        return len(self.patches)

    @property
    def n_units(self) -> int:
        return len(self.costs) - 1

    @property
    def complete(self) -> bool:
        return self.done == self.n_units


class ImageEncoder(nn.Module):
    """Pixels to embeddings of a text model of `dim`, whose `norm_eps` the adapter has.

    The work on an image is divided into units, in order: the embedding of each tile of patches; in each layer q, k and
    v of each tile, then the rest of the layer for each tile; the adapter for each tile of tokens. The units depend on
    the image alone. The bits of its embeddings depend therefore on nothing else: neither on the steps among which its
    work is divided, nor on other images.
    """

    def __init__(
        self, config: VisionConfig, dim: int, norm_eps: float, scheme: str = "none", kernels: Kernels | None = None
    ) -> None:
        super().__init__()
        self.config, self.dim = config, dim
        self._compiled = SCHEMES[scheme].compiled
        self._kernels = native.needed() if self._compiled else kernels
        self.patch_conv = make_linear(config.patch_width, config.dim, scheme=scheme)
        self.ln_pre = RMSNorm(config.dim, config.norm_eps)
        self.layers = nn.ModuleList(VisionBlock(config, scheme) for _ in range(config.n_layers))
        self.adapter = Adapter(config, dim, norm_eps, scheme)

    def begin(self, pixels: Tensor, rows: int, columns: int) -> Encoding:
        """The encoding of an image, with nothing done. `pixels` [H, W, 3] are uint8, in RGB; a side is a whole
        number of tokens: H is `rows * token_side`, W is `columns * token_side`.

        Raises ValueError for pixels of another size.
        """
        config, side = self.config, self.config.token_side
        if pixels.dtype is not torch.uint8 or pixels.shape != (rows * side, columns * side, config.n_channels):
            raise ValueError(
                f"an image of {rows} x {columns} tokens needs uint8 pixels [{rows * side}, {columns * side}, "
                f"{config.n_channels}], got {pixels.dtype} {list(pixels.shape)}"
            )
        height, width = rows * config.merge, columns * config.merge
        n_patches, weight = height * width, self.ln_pre.weight
        ids = torch.arange(n_patches, device=weight.device).view(rows, config.merge, columns, config.merge)
        return Encoding(
            patches=unfold(pixels.to(weight.device), config.patch_size),
            patch_ids=ids.transpose(1, 2).reshape(rows * columns, -1),
            x=weight.new_empty(n_patches, config.dim),
            attention=image_attention(
                rotations(height, width, config.head_dim, config.rope_theta).to(weight.device),
                config.n_heads,
                torch.bfloat16 if self._compiled else weight.dtype,
                self._kernels,
            ),
            embeddings=weight.new_empty(rows * columns, self.dim),
            costs=[*accumulate(self._costs(n_patches, rows * columns), initial=0)],
        )

    def advance(self, encoding: Encoding, stop: int) -> None:
        """Do the work up to patch `stop` of `n_patches`: the units that begin within this share of the cost of all.

        What is done, stays. A unit that raises can be repeated.
        """
        target = encoding.costs[-1] * stop
        while not encoding.complete and encoding.costs[encoding.done] * encoding.n_patches < target:
            self._compute(encoding, encoding.done)
            encoding.done += 1

    def forward(self, pixels: Tensor, rows: int, columns: int) -> Tensor:
        """The embeddings [rows * columns, dim] of an image, all at once; see `begin`."""
        encoding = self.begin(pixels, rows, columns)
        self.advance(encoding, encoding.n_patches)
        return encoding.embeddings

    def _costs(self, n_patches: int, n_tokens: int) -> list[int]:
        """The multiplications that each unit does for a patch, or for a token."""
        dim, width = self.config.dim, self.config.n_heads * self.config.head_dim
        tiles, merge = _tiles(n_patches), self.config.merge
        project = [3 * width * dim] * tiles
        complete = [width * dim + 3 * dim * self.config.hidden_dim + 2 * n_patches * width] * tiles
        adapter = (merge**2 * dim if merge > 1 else 0) * dim + (dim + self.dim) * self.dim
        embed = [self.config.patch_width * dim] * tiles
        return embed + (project + complete) * self.config.n_layers + [adapter] * _tiles(n_tokens)

    def _compute(self, encoding: Encoding, unit: int) -> None:
        """Compute one unit. There are no more tiles of tokens than of patches."""
        stage, number = divmod(unit, _tiles(encoding.n_patches))
        tile = slice(number * TILE, (number + 1) * TILE)
        layer, second = divmod(stage - 1, 2)
        if stage == 0:
            pixels = normalize(encoding.patches[tile]).to(encoding.x.dtype)
            encoding.x[tile] = self.ln_pre(self.patch_conv(pixels))
        elif layer == len(self.layers):
            encoding.embeddings[tile] = self.adapter(encoding.x[encoding.patch_ids[tile]])
        else:
            block: Any = self.layers[layer]
            work = encoding.x[tile], tile.start, encoding.attention
            if second:
                encoding.x[tile] = block.complete(*work)
            else:
                block.project(*work)


def _tiles(n: int) -> int:
    return -(-n // TILE)
