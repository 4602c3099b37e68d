"""Consecutive layers for each stage of a pipeline, so that the largest stage is as small as possible."""

from functools import cache
from itertools import accumulate

from model.config import ModelConfig


def stages(config: ModelConfig, n: int) -> list[range]:
    """The layers of each of n stages, each at least one.

    The embeddings count in the first stage, the output head in the last.
    Worked example: 8 equal layers in 3 stages, embeddings and head of the size of one layer each: 2, 4 and 2 layers.
    """
    sizes = [config.layer_parameters(layer) for layer in range(config.n_layers)]
    sums = [0, *accumulate(sizes)]
    table = config.vocab_size * config.dim

    def size(first: int, stop: int) -> int:
        return sums[stop] - sums[first] + table * (first == 0) + table * (stop == len(sizes))

    @cache
    def best(first: int, left: int) -> tuple[int, tuple[int, ...]]:
        """The size of the largest of `left` stages from layer `first` on, and where they end."""
        if left == 1:
            return size(first, len(sizes)), (len(sizes),)
        found = []
        for stop in range(first + 1, len(sizes) - left + 2):
            largest, stops = best(stop, left - 1)
            found.append((max(size(first, stop), largest), (stop, *stops)))
        return min(found)

    _, stops = best(0, n)
    return [range(first, stop) for first, stop in zip((0, *stops), stops, strict=False)]
