"""Consecutive layers for each stage of a pipeline, so that the stages have about the same size."""

from dataclasses import dataclass
from itertools import accumulate, pairwise

from model.config import ModelConfig


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
    """The layers of each of n stages, each at least one; each stage ends near its share of the bytes.

    The embeddings and the image encoder count in the first stage, the output head in the last.
    Worked example: 8 equal layers in 3 stages, embeddings and head of the size of one layer each: 2, 4 and 2 layers
    with the sizes 3, 4 and 3.
    """
    sizes = [config.layer_parameters(layer) * bits.layers for layer in range(config.n_layers)]
    table = config.vocab_size * config.dim
    sizes[0] += table * bits.embeddings + bits.encoder
    sizes[-1] += table * bits.head
    sums, stops = [0.0, *accumulate(sizes)], [0]
    for stage in range(1, n):
        possible = range(stops[-1] + 1, len(sizes) - (n - stage) + 1)
        stops.append(min(possible, key=lambda stop, share=sums[-1] * stage / n: abs(sums[stop] - share)))
    return [range(first, stop) for first, stop in pairwise((*stops, len(sizes)))]
