"""The choices of compiled attention: they change no bit, and the fastest by the clock serves."""

import random
from itertools import pairwise, product

import pytest
import torch

from model.attention.paged import Choice, PagedAttention
from model.kernels.cpu import native
from model.kernels.cpu.functions import Kernels
from model.kernels.cpu.records import AttentionCall
from model.kernels.cpu.tuning.contest import hold
from model.kernels.cpu.tuning.trials import DEFAULT
from model.network.tuning import paged_trials
from model.network.tuning.paged_trials import CANDIDATES, PagedTrials
from tests.model.attention.attending import CPU, attend, random_heads

CHOICES = [Choice(*values) for values in product(*({*named.values()} for named in CANDIDATES.values()))]
DTYPES = [torch.bfloat16, torch.float32, torch.int8]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("variant", native.available())
def test_every_choice_gives_the_bits_of_the_default(variant: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(native.ENVIRONMENT, variant)
    pick = random.Random(seed)
    n_kv_heads, width, dtype = pick.choice([1, 2]), pick.choice([6, 16, 64, 72]), DTYPES[seed % 3]
    data = random_heads([pick.randrange(1, 300), 40, 560], (n_kv_heads * pick.choice([1, 3, 9]), n_kv_heads), width)
    window, chunks = pick.choice([None, 33, 200]), pick.choice([[1, 16, 300], [530, 1], [70]])
    expected = attend(PagedAttention(), data, chunks, window, kv_dtype=dtype)
    for choice in CHOICES:
        backend = PagedAttention()
        backend.choice = choice
        found = attend(backend, data, chunks, window, kv_dtype=dtype)
        assert all(map(torch.equal, found, expected)), choice


def trials(dtype: torch.dtype = torch.bfloat16) -> PagedTrials:
    return PagedTrials(PagedAttention(), (6, 2, 24), dtype, threads=1)


@pytest.fixture
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_trials, "MOST_BYTES", 2**22)


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize("dtype", DTYPES)
def test_calls_read_other_pages_until_all_were_read(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many bytes as MOST_BYTES lie between two calls over the same pages."""
    own, read = trials(dtype), []
    monkeypatch.setattr(Kernels, "attention", lambda _, call: read.append(call.cells))
    for timing in own.timings().values():
        for _ in range(20):
            timing.contest.run(0)
    n_bytes = paged_trials.STREAMS * paged_trials.BLOCKS * own.attention.allocate((1, 2, 24), dtype, CPU).k.nbytes * 2
    places = sorted(set(read[:20]))
    assert len(places) * n_bytes > paged_trials.MOST_BYTES - n_bytes
    assert {after - before for before, after in pairwise(places)} == {n_bytes}
    assert read[: len(places)] == places == sorted(set(read[20:]))


class Machine:
    """A clock. A call takes less time the nearer it is to this distance and to this number of tasks of a chunk."""

    def __init__(self, ahead: int, n_tasks: int) -> None:
        self.ahead, self.n_tasks, self.now = ahead, n_tasks, 0.0

    def attention(self, call: AttentionCall) -> None:
        is_chunk = call.n_rows == paged_trials.CHUNK
        self.now += 1 + (abs(call.n_tasks - self.n_tasks) if is_chunk else abs(call.ahead - self.ahead))

    def clock(self) -> float:
        return self.now


@pytest.mark.usefixtures("little")
@pytest.mark.parametrize(
    ("machine", "names"),
    [
        (Machine(6, 16), {"ahead": "6", "rows": "4"}),
        (Machine(1, 8), {"ahead": "1", "rows": "8"}),
        (Machine(0, 1), {"ahead": DEFAULT, "rows": DEFAULT}),
    ],
    ids=["far, small", "near, half", "default"],
)
def test_the_fastest_serves(machine: Machine, names: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of 64 rows is 4, 8 or 16 tasks. What wins is in the calls of the backend from then on."""
    monkeypatch.setattr(Kernels, "attention", lambda _, call: machine.attention(call))
    own = trials()
    timings = own.timings()
    hold([timing.contest for timing in timings.values()], 3, 1e9, machine.clock)
    assert {field: timing.winner for field, timing in timings.items()} == names
    assert own.knows(names)
    own.set(names)
    assert own.attention.choice == Choice(**{field: CANDIDATES[field][name] for field, name in names.items()})


def test_without_memory_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    own = trials()
    monkeypatch.setattr(paged_trials, "free_bytes", lambda device: 2**20)
    assert own.timings() == {}
    own.set({})
    assert own.attention.choice == Choice()


@pytest.mark.parametrize("names", [{}, {"ahead": "2"}, {"ahead": "2", "rows": "99"}, {"1": "4x2"}], ids=repr)
def test_a_choice_that_is_not_known_is_timed_again(names: dict[str, str]) -> None:
    assert not trials().knows(names)
