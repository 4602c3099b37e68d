"""Chunked == whole, packed == alone, scattered pages == pages in order: on the real network, in float32.

The yardstick is the reference backend given the whole sequence at once, pages in order.
"""

import random
from functools import cache

import pytest
import torch
from torch import Tensor

from model.config.model import ModelConfig, QueryTemperature, Rope, RopeScaling
from tests.model.attention.attending import SWIFT, make
from tests.model.attention.reference import ReferenceAttention
from tests.model.driving import Driver, Rider, random_model, tiny

WINDOW = 37
LENGTHS = (WINDOW - 1, WINDOW, WINDOW + 1, 2 * WINDOW + 3)
CONFIGS = {
    "full": tiny((None, None)),
    "windowed": tiny((WINDOW, WINDOW)),
    "mixed": tiny(
        (WINDOW, None, 5),
        rope_dim=4,
        rope_fraction=0.5,
        full_rope=Rope(1e6, 4, scaling=RopeScaling("yarn", 4.0, 16)),
        query_temperature=QueryTemperature(16, 0.5),
    ),
    "sparse": tiny((WINDOW, WINDOW), n_experts=4, n_experts_per_token=2),
}


@pytest.fixture(params=sorted(CONFIGS))
def config(request: pytest.FixtureRequest) -> ModelConfig:
    return CONFIGS[request.param]


@pytest.fixture(params=SWIFT)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


def prompt(length: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(64), k=length)


@cache
def _whole(config: ModelConfig, tokens: tuple[int, ...]) -> Tensor:
    return Driver(random_model(config), ReferenceAttention()).whole(tokens)


def whole(config: ModelConfig, tokens: list[int]) -> Tensor:
    return _whole(config, tuple(tokens))


def close(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("chunk", [1, 7, WINDOW, None])
def test_chunked_equals_whole_on_scattered_pages(config: ModelConfig, backend: str, chunk: int | None) -> None:
    driver = Driver(random_model(config), make(backend), shuffle=1)
    for length in LENGTHS:
        tokens = prompt(length, seed=length)
        close(driver.whole(tokens, chunk), whole(config, tokens))


def test_packed_equals_alone(config: ModelConfig, backend: str) -> None:
    """Sequences of many lengths are packed together, in steps that mix single tokens and chunks."""
    random_steps = random.Random(7)
    driver = Driver(random_model(config), make(backend), shuffle=2)
    riders = [driver.start(prompt(length, seed=length)) for length in (*LENGTHS, 1, 3, 50, 64)]
    parts: dict[int, list[Tensor]] = {id(rider): [] for rider in riders}
    while waiting := [rider for rider in riders if rider.done < len(rider.tokens)]:
        chosen = [(rider, _next(rider, random_steps)) for rider in waiting if random_steps.random() < 0.7]
        if not chosen:
            continue
        for (rider, _), logits in zip(chosen, driver.step(chosen), strict=True):
            parts[id(rider)].append(logits)
    for rider in riders:
        close(torch.cat(parts[id(rider)]), whole(config, rider.tokens))


def _next(rider: Rider, source: random.Random) -> int:
    return min(source.choice([1, 1, 1, 7, 20]), len(rider.tokens) - rider.done)


def test_windowed_sequence_holds_bounded_pages(backend: str) -> None:
    """200 tokens pass a window of 37 in chunks of 7. They hold at most ceil((36 + 7) / 32) + 1 = 3 pages at a time."""
    config = CONFIGS["windowed"]
    driver = Driver(random_model(config), make(backend), n_pages=3)
    tokens = prompt(200)
    close(driver.whole(tokens, 7), whole(config, tokens))
