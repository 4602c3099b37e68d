"""Sampling on a GPU, under Triton's interpreter: the tokens that the CPU's compiled kernel draws."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

pytest.importorskip("triton")

from model.batch import Slice
from model.kernels import cuda as triton
from model.kernels.cpu import native
from model.kernels.cpu.records import NO_TOKEN, NOT_FINITE
from model.kernels.cpu.records import sampling as row_of_c
from model.kernels.cuda import sampling
from model.sampling_params import SamplingParams
from model.step import distribution
from tests.model.kernels.sampling_rows import random_rows
from tests.model.kernels.triton_case import poisoned


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    yield from poisoned()


def random_logits(n: int, n_tokens: int, source: np.random.Generator) -> Tensor:
    """Every other row is rounded to bfloat16, as many heads do: ties are common. Tokens are hidden, and rows bad."""
    logits = torch.from_numpy(source.standard_normal((n, n_tokens), np.float32) * 3)
    logits[::2] = logits[::2].bfloat16().float()
    logits[torch.from_numpy(source.random((n, n_tokens)) < 0.1)] = -torch.inf
    logits[5::50] = -torch.inf
    logits[7::50, -1] = torch.nan
    logits[9::50, n_tokens // 2] = torch.inf
    logits[11::50] = 1.5
    return logits


def by_the_cpu(logits: Tensor, rows: NDArray[np.void]) -> tuple[Tensor, Tensor]:
    """Tokens and logits afterwards."""
    table = np.zeros(len(rows), dtype=row_of_c())
    table[[*sampling.row_type().names]] = rows
    after = logits.clone()
    return native.needed().sample(after, table), after


def sampled(logits: Tensor, rows: NDArray[np.void]) -> Tensor:
    return sampling.sample(logits, rows)


def tile(patch: pytest.MonkeyPatch, rows: int, block: int, programs: int) -> None:
    """Programs of so many rows, which load so many columns at once: the interpreter needs few programs."""
    for name, value in {"ROWS": rows, "CHOICES": rows, "BLOCK": block, "PROGRAMS": programs}.items():
        patch.setattr(sampling, name, value)


@pytest.mark.parametrize(
    ("n_tokens", "n_rows", "block", "parts"),
    [(1, 400, 16, 1), (37, 6100, 64, 1), (256, 2500, 128, 2), (1500, 700, 512, 2), (3001, 300, 1024, 3)],
)
def test_draws_the_tokens_of_the_cpu(
    n_tokens: int, n_rows: int, block: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """10,000 rows of mixed parameters. `parts` programs share the columns of a row."""
    source = np.random.default_rng(n_tokens)
    logits, rows = random_logits(n_rows, n_tokens, source), random_rows(n_rows, source, sampling.row_type())
    tile(monkeypatch, 512, block, parts * -(-n_rows // 512))
    expected, after = by_the_cpu(logits, rows)
    assert {NO_TOKEN, NOT_FINITE} < set(expected.tolist())
    assert sampled(logits, rows).tolist() == expected.tolist()
    drawn, at = expected >= 0, expected.clamp(min=0)[:, None]
    torch.testing.assert_close(logits.gather(1, at)[drawn], after.gather(1, at)[drawn], rtol=1e-5, atol=0)


def test_a_row_depends_neither_on_the_others_nor_on_the_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    source = np.random.default_rng(0)
    logits, rows = random_logits(60, 600, source), random_rows(60, source, sampling.row_type())
    found = []
    for order, *sizes in (range(60), 64, 1024, 1), (range(59, -1, -1), 32, 128, 6), (range(7, 11), 1, 1024, 4):
        tile(monkeypatch, *sizes)
        values = logits[list(order)]
        tokens = sampled(values, rows[list(order)])
        found.append({row: (tokens[i].item(), values[i].nan_to_num().tolist()) for i, row in enumerate(order)})
    whole, backwards, part = found
    assert whole == backwards
    assert part.items() <= whole.items()


def slices(n: int) -> list[Slice]:
    kinds = ({}, {"top_p": 0.9}, {"top_k": 20}, {"min_p": 0.05}, {"top_k": 50, "top_p": 0.5}, {"temperature": 0.0})
    params = [SamplingParams(seed=seed, **kinds[seed % len(kinds)]) for seed in range(n)]  # type: ignore[arg-type]
    return [Slice(0, [0], 1, 0, 1, (), each) for each in params]


def test_pytorch_draws_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves where there are too many tokens for a key."""
    tile(monkeypatch, 64, 1024, 1)
    items, logits = slices(60), torch.randn(60, 999, generator=torch.Generator().manual_seed(1)) * 2
    found = distribution.choose(logits.clone(), items, sampling)
    assert found.tolist() == distribution.choose(logits, items, None).tolist()
    monkeypatch.setattr(triton, "serve_on", lambda device: True)
    assert distribution.on_gpu(logits.device, sampling.MOST_TOKENS) is sampling
    assert distribution.on_gpu(logits.device, sampling.MOST_TOKENS + 1) is None
