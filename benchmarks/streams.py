"""Streams that begin at the same time, through the engine's own loop, without a service."""

import time
from collections.abc import Sequence

from benchmarks.workload import Timing
from model.batch import Runner
from model.sampling_params import SamplingParams
from service.engine.loop import EngineLoop
from service.engine.messages import FromEngine, Report, Stop, Submit, ToEngine
from service.engine.scheduling.scheduler import Scheduler


def generate(runner: Runner, scheduler: Scheduler, prompts: Sequence[list[int]], n_tokens: int) -> Timing:
    """The likeliest `n_tokens` tokens after each prompt; the timing counts steps in which all streams decode."""
    return _Streams(prompts, n_tokens).run(runner, scheduler)


class _Streams:
    """A client of the loop: it submits all prompts at once, and notes when tokens come."""

    def __init__(self, prompts: Sequence[list[int]], n_tokens: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=n_tokens)
        self._waiting: list[ToEngine] = [Submit(number, prompt, params) for number, prompt in enumerate(prompts)]
        self._first: dict[int, float] = {}
        self._last: dict[int, float] = {}
        self._came: list[tuple[float, int]] = []

    def run(self, runner: Runner, scheduler: Scheduler) -> Timing:
        started = time.perf_counter()
        EngineLoop(runner, scheduler, self._receive, self._send).run()
        begin, end = max(self._first.values()), min(self._last.values())
        return Timing(begin - started, sum(n for at, n in self._came if begin < at <= end), max(end - begin, 0.0))

    def _receive(self, block: bool) -> list[ToEngine]:
        messages, self._waiting = self._waiting, []
        return messages or ([Stop()] if block else [])

    def _send(self, message: FromEngine) -> None:
        assert isinstance(message, Report)
        now = time.perf_counter()
        for update in message.updates:
            assert update.finish != "error"
            self._first.setdefault(update.id, now)
            self._last[update.id] = now
            self._came.append((now, len(update.tokens)))
