"""Sampling on a GPU, under Triton's interpreter and compiled, against the compiled kernel of the CPU: the same bits."""

import platform
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

pytest.importorskip("triton")

import triton
import triton.language as tl

from model.batch import Slice
from model.kernels import cuda
from model.kernels.cpu import native
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.records import NO_TOKEN, NOT_FINITE, SAMPLING
from model.kernels.cuda import sample
from model.kernels.cuda.limits import LEAST_SHARED
from model.sampling_params import SamplingParams
from model.step import distribution, sampler
from tests.model.kernels import compiling
from tests.model.kernels.launches.sample import LAUNCHES
from tests.model.kernels.sampling_case import random_logits, random_rows, sampled
from tests.model.kernels.triton_case import poisoned

MULTIPROCESSOR_REGISTERS = 65536
"""Registers of a multiprocessor, from 8.0 on (CUDA C++ Programming Guide, technical specifications)."""
INFINITY = float("inf")


@pytest.fixture(autouse=True)
def poison() -> Iterator[None]:
    yield from poisoned()


@pytest.fixture
def fused() -> list[Kernels]:
    """The variants of this processor whose multiply-adds round once, as a GPU's do."""
    arm = platform.machine() in ("aarch64", "arm64")
    found = [native.variant(name) for name in native.available() if arm or name != "baseline"]
    return found or pytest.fail("no variant with fused multiply-adds")


def row(**values: float) -> NDArray[np.void]:
    """A row that allows all tokens at temperature 1, but for `values`."""
    rows = np.array([(1, 0, 1, 0, 12345, 6789)], dtype=SAMPLING)
    for name, value in values.items():
        rows[name] = value
    return rows


@pytest.mark.parametrize(("n_rows", "vocab_size", "tile"), [(14, 900, 512), (4, 4999, sample.TILE)])
def test_tokens_and_values_are_those_of_the_cpu(
    n_rows: int, vocab_size: int, tile: int, fused: list[Kernels], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sample, "TILE", tile)
    source = np.random.default_rng(vocab_size)
    logits, rows = random_logits((n_rows, vocab_size), source), random_rows(n_rows, source)
    found = sampled(sample.sample, logits, rows)
    assert found == sampled(fused[0].sample, logits, rows)


def test_vectors_of_all_widths_sample_the_same(fused: list[Kernels]) -> None:
    source = np.random.default_rng(0)
    logits, rows = random_logits((400, 3001), source), random_rows(400, source)
    first, *others = [sampled(kernels.sample, logits, rows) for kernels in fused]
    assert all(other == first for other in others)


@pytest.mark.filterwarnings("ignore:overflow")  # to infinity, as on any device: only NumPy warns
@pytest.mark.parametrize(
    ("values", "params"),
    [
        ([-INFINITY] * 5, {}),
        ([0.0, float("nan"), 1.0], {}),
        ([0.0, 1.0, INFINITY], {"temperature": 0}),
        ([-INFINITY, 2.0, -INFINITY], {"top_p": 0.5}),
        ([1e38, -1e38, 3e38, -INFINITY], {"temperature": 1e-30, "top_k": 2}),
        ([1.0, 1.0, 1.0, 1.0], {"top_k": 1, "temperature": 1e30}),
        ([0.0] * 40, {"top_p": 0.5}),
        ([0.0] * 40, {"top_k": 3, "top_p": 0.5}),
        ([0.0] + [-6.9] * 1000, {"top_p": 0.75, "start": 4}),  # a small weight that stays wins
        ([1.0, -1.0] * 20, {"top_k": 21}),
        ([0.0, -200.0, -300.0, 1.0], {"top_k": 3}),
        ([3.0, 1.0], {"top_k": 2}),
        ([3.0, 1.0, 3.0], {"min_p": 1.0}),
    ],
)
def test_edges(values: list[float], params: dict[str, float], fused: list[Kernels]) -> None:
    logits = torch.tensor([values])
    found = sampled(sample.sample, logits, row(**params))
    assert found == sampled(fused[0].sample, logits, row(**params))


@triton.jit
def clocks(x, y, top, temperature, start, step, n: tl.constexpr):
    token = tl.arange(0, n)
    weight = sample._weight(tl.load(x + token), top, temperature, 0.0)
    tl.store(y + token, tl.div_rn(weight, -sample._logarithm(sample._uniform(token, start, step))))


@pytest.mark.filterwarnings("ignore:overflow")  # of hashes
def test_functions_have_the_bits_of_the_cpus(fused: list[Kernels]) -> None:
    """All values of a race, with weights from 1 down to 0."""
    logits = torch.linspace(-200, 0, 2**14)[None]
    found = torch.empty_like(logits)
    clocks[(1,)](logits, found, 0.0, torch.tensor(1.7).item(), 12345, 6789, logits.shape[1])
    fused[0].sample(logits, row(temperature=1.7))
    assert (logits == 0).any()
    assert torch.equal(found, logits)


@triton.jit
def fixed(x, y, n: tl.constexpr):
    tl.store(y + tl.arange(0, n), sample._fixed(tl.load(x + tl.arange(0, n))))


def test_weights_become_integers() -> None:
    weights = torch.tensor([1.0, 0.0, 2.0**-41, 2.0**-42, 1 - 2.0**-24, *torch.rand(11).pow(20).tolist()])
    found = torch.empty(16, dtype=torch.int64)
    fixed[(1,)](weights, found, 16)
    assert found.tolist() == [int(weight * 2**41) for weight in weights.tolist()]


@pytest.mark.parametrize("n", [1, 7, 1000, 1024, 1025, 5000])
def test_sums_of_the_cpu_are_exact(n: int, fused: list[Kernels]) -> None:
    """Half of the sum of equal weights is half of them: more would be hidden, or fewer, with any rounding."""
    for kernels in fused:
        logits = torch.full((1, n), 5.0)
        kernels.sample(logits, row(top_p=0.5))
        assert int((logits > 0).sum()) == (n + 1) // 2


def test_results_without_a_token() -> None:
    logits = torch.tensor([[-INFINITY] * 3, [0.0, INFINITY, 0.0], [0.0, float("nan"), -INFINITY]])
    rows = np.concatenate([row(), row(temperature=0), row(top_p=0.5)])
    assert sample.sample(logits, rows).tolist() == [NO_TOKEN, NOT_FINITE, NOT_FINITE]


def test_rows_must_fit() -> None:
    with pytest.raises(ValueError, match="expected 2 rows"):
        sample.sample(torch.zeros(2, 3), row())


# In a step


def after(**params: Any) -> Slice:
    return Slice(0, [0], 1, 0, 1, (), SamplingParams(**params), 0)


KINDS = ({"temperature": 1.0}, {"top_p": 0.9}, {"top_k": 50, "top_p": 0.9, "min_p": 0.01}, {"temperature": 0.0})


def test_a_part_of_a_vocabulary_has_the_noise_of_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ranks sample: `best` of two parts, and of the whole."""
    logits = random_logits((2, 200), np.random.default_rng(1))
    slices = [after(temperature=0.7), after(temperature=0.0)]
    monkeypatch.setattr(distribution, "_kernel", lambda _: sample.sample)
    parts = [
        distribution.best(part.clone(), slices, first) for part, first in ((logits[:, :90], 0), (logits[:, 90:], 90))
    ]
    found = distribution.best_of_all(torch.cat(parts, dim=1), slices)
    monkeypatch.undo()
    assert found.tolist() == distribution.choose(logits, slices).tolist()


class Operations(TorchDispatchMode):
    """Counts what a device would compute or copy: no views, no fresh memory."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = Counter[str]()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, results = function._schema.name, function._schema.returns
        alias = results[0].alias_info if results else None
        if "empty" not in name and (alias is None or alias.is_write):
            self.counts[name] += 1
        return function(*args, **kwargs or {})


class Launches:
    """In place of a kernel: counts its launches."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, ...]] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *_, **__: self.grids.append(grid)


@pytest.mark.parametrize("kinds", [KINDS[:1], KINDS[1:2], KINDS[2:3], KINDS], ids=["plain", "top_p", "all", "mixed"])
def test_a_step_is_one_copy_and_one_launch(kinds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device that computes nothing. In PyTorch it takes 42 to 102 operations."""
    slices = [after(**params) for params in kinds]
    logits = torch.empty(len(slices), 32_768, device="meta")
    with Operations() as before:
        sampler.sample(logits, slices)
    launches = Launches()
    monkeypatch.setattr(cuda, "serves", lambda _: True)
    monkeypatch.setattr(sample, "_sample", launches)
    with Operations() as found:
        sampler.sample(logits, slices)
    assert before.counts.total() >= 42
    assert found.counts == {"aten::_to_copy": 1}
    assert launches.grids == [(len(slices),)]


# Compiled


@pytest.fixture(scope="module")
def compiled() -> list[compiling.Compiled]:
    return compiling.compiled("sample")


@pytest.mark.timeout(600)  # once: Triton's cache has it afterwards
def test_two_programs_fit_on_a_multiprocessor(compiled: list[compiling.Compiled]) -> None:
    """With 256 rows, no row waits for others on a GPU with 132 multiprocessors. No register is kept in memory."""
    assert not [one.error for one in compiled if one.error]
    assert {(one.launch, one.capability) for one in compiled} == {
        (name, capability) for name, (_, capabilities) in LAUNCHES.items() for capability in capabilities
    }
    for one in compiled:
        assert 2 * one.registers * 32 * one.warps <= MULTIPROCESSOR_REGISTERS
        assert one.stack == 0
        assert one.shared <= LEAST_SHARED // 4


def test_divisions_are_rounded_as_in_c(compiled: list[compiling.Compiled]) -> None:
    for one in compiled:
        counts = one.instructions or {}
        assert counts["div.rn.f32"] > 0
        assert [counts[name] for name in ("div.full", ".approx", ".ftz")] == [0, 0, 0]
