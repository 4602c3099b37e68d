"""Which candidate wins, on a clock that candidates move."""

import random

import pytest

from model.kernels.cpu.tuning.contest import Contest, hold


class Machine:
    """A clock. Candidate i takes `seconds[i]`, and longer where `delay` says so."""

    def __init__(self, seconds: list[float], delay: list[float] | None = None) -> None:
        self.now, self.runs = 0.0, [0] * len(seconds)
        self._seconds, self._delays = seconds, iter(delay or [])

    def run(self, candidate: int) -> None:
        self.runs[candidate] += 1
        self.now += self._seconds[candidate] + next(self._delays, 0.0)

    def clock(self) -> float:
        return self.now


def winner(machine: Machine, rounds: int = 8, seconds: float = 1e9) -> int:
    contest = Contest(len(machine.runs), machine.run)
    hold([contest], rounds, seconds, machine.clock)
    return contest.winner


@pytest.mark.parametrize(
    ("seconds", "best"),
    [([5, 4, 3, 6], 2), ([3, 4, 5], 0), ([10, 9.8], 0), ([10, 9.6], 1), ([1], 0)],
    ids=["fastest", "default", "no clear gain", "clear gain", "alone"],
)
def test_the_fastest_wins_if_its_gain_is_clear(seconds: list[float], best: int) -> None:
    assert winner(Machine(seconds)) == best


@pytest.mark.parametrize("seed", range(20))
def test_another_program_chooses_nothing_slower(seed: int) -> None:
    """Two of three runs are disturbed. The default is faster than 1 and 2, and nearly as fast as 3."""
    source = random.Random(seed)
    delays = [source.choice((0.0, 1.0, 1.0)) * source.random() * 10 for _ in range(10_000)]
    assert winner(Machine([1.0, 1.1, 1.02, 0.99], delays), rounds=12) == 0


def test_few_rounds_change_nothing() -> None:
    assert winner(Machine([3, 1]), rounds=2) == 0


def test_time_is_bounded_by_one_round_of_a_contest() -> None:
    machine = Machine([1.0, 1.0])
    contests = [Contest(2, machine.run) for _ in range(5)]
    hold(contests, 1000, 7.0, machine.clock)
    assert 7.0 <= machine.now <= 9.0
    assert {contest.winner for contest in contests} == {0}


def test_a_hopeless_candidate_runs_twice_and_the_default_always() -> None:
    machine = Machine([9.0, 1.0, 2.0])
    assert winner(machine, rounds=5) == 1
    assert machine.runs == [5, 5, 2]


def test_each_candidate_is_first_in_some_round() -> None:
    order: list[int] = []
    contest = Contest(3, order.append)
    hold([contest], 3, 1e9, iter(range(1000)).__next__)
    assert order == [0, 1, 2, 1, 2, 0, 2, 0, 1]
