"""Consecutive layers for each stage of a pipeline, so that the largest stage is as small as possible."""

from dataclasses import dataclass
from functools import cache
from itertools import accumulate

from model.config.model import ModelConfig


@dataclass(frozen=True, slots=True)
class StoredBits:
    """Bits of a weight of the layers, of the embeddings and of the output head; those of the whole image encoder."""

    layers: float = 1
    embeddings: float = 1
    head: float = 1
    encoder: int = 0


ALIKE = StoredBits()
"""Every weight counts the same."""


def stages(config: ModelConfig, n: int, bits: StoredBits = ALIKE) -> list[range]:
    """Divide the layers into n stages, each at least one.

    The embeddings and the image encoder count in the first stage, the output head in the last. Among divisions with the
    same largest stage, it takes one whose stages are alike: their squares have a smaller sum.
    Worked example: 8 equal layers in 3 stages, embeddings and head of the size of one layer each: 2, 3 and 3 layers
    with the sizes 3, 3 and 4.
    """
    sizes = [round(config.layer_parameters(layer) * bits.layers) for layer in range(config.n_layers)]
    sums = [0, *accumulate(sizes)]
    table = config.vocab_size * config.dim
    before, behind = round(table * bits.embeddings) + bits.encoder, round(table * bits.head)

    def size(first: int, stop: int) -> int:
        return sums[stop] - sums[first] + before * (first == 0) + behind * (stop == len(sizes))

    @cache
    def best(first: int, left: int) -> tuple[int, int, tuple[int, ...]]:
        """Return of `left` stages from layer `first` on: the largest size, the sum of squares, where they end."""
        if left == 1:
            rest = size(first, len(sizes))
            return rest, rest**2, (len(sizes),)
        found = []
        for stop in range(first + 1, len(sizes) - left + 2):
            own, (largest, squares, stops) = size(first, stop), best(stop, left - 1)
            found.append((max(own, largest), own**2 + squares, (stop, *stops)))
        return min(found)

    _, _, stops = best(0, n)
    return [range(first, stop) for first, stop in zip((0, *stops), stops, strict=False)]
