"""Noise against what random numbers should be, and ranks of log probabilities: both in PyTorch alone."""

import math
import random

import pytest
import torch
from torch import Tensor

from model.step.logprobs import log_softmax, ranks, token_logprobs
from model.step.noise import noise, noise_keys

CPU = torch.device("cpu")


def histogram(values: Tensor) -> float:
    """Chi-square of 20 equal bins."""
    counts = values.histc(20, 0.0, 1.0)
    return float(((counts - values.numel() / 20) ** 2 / (values.numel() / 20)).sum())


FREEDOM_19 = 19 + 6 * math.sqrt(38)


def test_noise_is_uniform_over_tokens_and_over_seeds() -> None:
    for seed in range(8):
        values = noise(noise_keys([seed], [0], [0]), 50_000, CPU)[0]
        assert values.min() > 0
        assert values.max() < 1
        assert histogram(values) < FREEDOM_19
    for token in (0, 1, 777):
        values = noise(noise_keys(range(-5000, 5000), [0] * 10_000, [0] * 10_000), 800, CPU)[:, token]
        assert histogram(values) < FREEDOM_19


def test_each_word_of_the_key_matters() -> None:
    near = [(s, c, i) for s in (0, 1, 2**63 - 1, -(2**63)) for c in range(8) for i in range(64)]
    assert len(set(noise_keys(*zip(*near, strict=True)).tolist())) == len(near)


@pytest.mark.parametrize("axis", [0, 1])
def test_neighbouring_samples_and_tokens_are_uncorrelated(axis: int) -> None:
    values = noise(noise_keys([5] * 300, [0] * 300, range(300)), 300, CPU)
    first, second = values.narrow(axis, 0, 299).flatten(), values.narrow(axis, 1, 299).flatten()
    assert abs(torch.corrcoef(torch.stack((first, second)))[0, 1].item()) < 0.02


def test_alternatives_tie_by_id_and_are_as_many_as_requested() -> None:
    logprobs = log_softmax(torch.tensor([[0.0, 1.0, 1.0, 0.0], [-0.0, 0.0, -0.0, 0.0]]))
    first, second = token_logprobs(logprobs, [3, 2], [3, 0])
    assert [i for i, _ in first.top] == [1, 2, 0]
    assert second.top == ()
    assert second.logprob == pytest.approx(math.log(0.25))
    (every_token,) = token_logprobs(logprobs[1:], [0], [20])
    assert [i for i, _ in every_token.top] == [0, 1, 2, 3]


def test_ranks_are_first_places_in_a_sorted_list() -> None:
    source = random.Random(5)
    rows = [[float(source.randrange(6)) for _ in range(40)] for _ in range(30)]
    tokens = [source.randrange(40) for _ in rows]
    places = [sorted(row, reverse=True).index(row[token]) + 1 for row, token in zip(rows, tokens, strict=True)]
    assert ranks(torch.tensor(rows), tokens) == places
