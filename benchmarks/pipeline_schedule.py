"""The engine's own scheduler and loop over stages that compute nothing, on a clock that jumps to the next event.

It gives the idle share of the schedule alone, for any number of stages, on any machine.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from benchmarks import streams
from model.batch import PoolSpec, RunnerInfo, SliceOutput, StepBatch, StepOutput
from model.ranks.runner import NoAdapters
from model.sampling_params import SamplingParams
from service.engine.scheduling.scheduler import Scheduler

SLOW_HOP = 0.1
"""Time from one stage to the next, in steps of a stage."""
LENGTH, N_SEQUENCES, N_TOKENS = 2048, 64, 200
INFO = RunnerInfo(32, (PoolSpec(None, N_SEQUENCES * LENGTH // 32),), LENGTH, 1000, 1, N_SEQUENCES, LENGTH, {})


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of a step in one stage, of each of its rows, and on the way to the next stage."""

    step: float = 0.0
    row: float = 0.0
    hop: float = 0.0


class Stages:
    """A runner of `n` stages. The first one computes during `launch`, as rank 0 does."""

    grammar_restarts = 0
    waits_for_grammars = False

    adapters = NoAdapters()

    def __init__(self, n: int, in_flight: int, cost: Cost) -> None:
        self.info = replace(INFO, pipeline=in_flight)
        self._cost = cost
        self._now = 0.0
        self._busy = [0.0] * n
        self._free = [0.0] * n  # when each stage can begin its next step

    @property
    def idle_shares(self) -> list[float]:
        """The share of time in which each stage had nothing to compute."""
        return [1 - busy / self._now for busy in self._busy]

    def launch(self, batch: StepBatch) -> Callable[[], StepOutput]:
        seconds, ready = self._cost.step + self._cost.row * batch.n_tokens, self._now
        for stage, free in enumerate(self._free):
            self._free[stage] = max(ready, free) + seconds
            self._busy[stage] += seconds
            ready = self._free[stage] + self._cost.hop
        self._now = self._free[0]
        output = StepOutput(tuple(SliceOutput((1,) * len(item.samples)) for item in batch.slices))

        def wait() -> StepOutput:
            self._now = max(self._now, ready)
            return output

        return wait

    def idle(self) -> bool:
        return False

    def prepare(self, params: SamplingParams) -> None: ...

    def watch(self, lost: Callable[[str], None]) -> None: ...

    def close(self) -> None: ...


def prompt(n_stages: int, n_chunks: int) -> list[float]:
    """The idle share of each stage while one prompt is computed in chunks. A row costs the same in all of them."""
    stages = Stages(n_stages, n_stages, Cost(row=1.0))
    scheduler = Scheduler(stages.info, max_sequences=1, max_step_tokens=n_stages * LENGTH // 2 // n_chunks)
    streams.generate(stages, scheduler, [[1] * (LENGTH // 2)], 1)
    return stages.idle_shares


def decode(n_stages: int, n_groups: int, hop: float = 0.0) -> list[float]:
    """The idle share of each stage while 64 sequences decode in groups. Each step costs 1: it reads all weights."""
    stages = Stages(n_stages, n_groups, Cost(step=1.0, hop=hop))
    scheduler = Scheduler(stages.info, max_sequences=N_SEQUENCES, max_step_tokens=LENGTH)
    streams.generate(stages, scheduler, [[1]] * N_SEQUENCES, N_TOKENS)
    return stages.idle_shares


def theory(n_stages: int, n_steps: int) -> float:
    """The idle share of M stages that compute m steps and then stop: (M - 1) / (m + M - 1)."""
    return (n_stages - 1) / (n_steps + n_stages - 1)


def steady(n_stages: int, n_steps: int) -> float:
    """That of M stages with always m steps in flight: a stage waits only if there are fewer steps than stages."""
    return max(0.0, 1 - n_steps / n_stages)
