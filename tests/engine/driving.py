"""Drives a scheduler with the fake model, and checks the rules of the wheel after every step."""

import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any

from model.batch import Runner, RunnerInfo, StepBatch, StepOutput, TokenLogprob
from model.sampling_params import SamplingParams
from service.engine.loop import EngineLoop
from service.engine.messages import AGAIN, Admitted, FromEngine, Report, Stats, Stop, Submit, ToEngine, Update
from service.engine.prefixes.store import PrefixStore
from service.engine.scheduling.budget import PromptBudget
from service.engine.scheduling.scheduler import Scheduler
from tests.fakes import AheadRunner, FakeRunner, PipelineRunner, Say, next_token, sample_token


def expected(prompt: list[int], params: SamplingParams, choice: int = 0, say: Say = next_token) -> list[int]:
    """The answer of the fake model to a request that is served alone, computed without an engine."""
    tokens = list(prompt)
    while len(tokens) - len(prompt) < params.max_tokens:
        tokens.append(sample_token(say, tokens, params, choice))
        if tokens[-1] in params.stop_token_ids:
            break
    return tokens[len(prompt) :]


def copied(batch: StepBatch) -> list[tuple[Any, ...]]:
    """A deep copy of the slices of a batch."""
    return [
        (
            item.sequence_id,
            [*item.tokens],
            (item.n_prompt, item.start, item.stop, item.choice, item.n_draft),
            [(table.first_block, [*table.pages]) for table in item.tables],
            item.params,
        )
        for item in batch.slices
    ]


class Drive:
    """A scheduler, the fake model and the answer of every sequence so far.

    With several steps in flight, `order` decides where more than one order of plans and results is possible. `lack`
    decides which steps do not fit into memory.
    """

    runner: FakeRunner

    def __init__(
        self,
        info: RunnerInfo,
        *,
        max_sequences: int = 4,
        max_step_tokens: int = 8,
        say: Say = next_token,
        order: Random | None = None,
        lack: Random | None = None,
        prompts: PromptBudget | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.info = info
        self.order = order
        self.lack = lack
        self.say = say
        self.max_step_tokens = max_step_tokens
        self.runner = self.new_runner(info, say)
        self.scheduler = Scheduler(
            info,
            max_sequences=max_sequences,
            max_step_tokens=max_step_tokens,
            clock=clock,
            prompts=prompts,
            store=self.new_store(),
            adapter_name=self.runner.adapters.fingerprint,
        )
        self.answers: dict[int, list[int]] = defaultdict(list)
        self.updates: dict[int, list[Update]] = defaultdict(list)
        self.finished: dict[int, str] = {}
        self.n_again = 0
        self._requests: dict[int, Submit] = {}
        self._planned: list[tuple[StepBatch, list[tuple[Any, ...]]]] = []
        self.flights: deque[tuple[StepBatch, Callable[[], StepOutput]]] = deque()

    def new_runner(self, info: RunnerInfo, say: Say) -> FakeRunner:
        if info.runs_ahead:
            return AheadRunner(info, say=say)
        return (PipelineRunner if info.pipeline > 1 else FakeRunner)(info, say=say)

    def new_store(self) -> PrefixStore | None:
        """Where full pages go."""
        return None

    def admitted(self, sequence_id: int) -> Admitted:
        """The facts of a sequence that has had an update."""
        found = self.updates[sequence_id][0].admitted
        assert found is not None
        return found

    def submit(self, sequence_id: int, prompt: list[int], params: SamplingParams, choice: int = 0, **more: Any) -> None:
        request = Submit(sequence_id, prompt, params, choice, **more)
        parts = [replace(request, id=id, choice=choice + index, n=1) for index, id in enumerate(request.ids)]
        self._requests |= {part.id: part for part in parts}
        self.scheduler.submit(request)

    def step(self) -> StepBatch:
        """Plan and launch one step, if there is anything to plan. Read the oldest one if it is time."""
        if self.flights and self.order and self.order.random() < 0.3:
            return self.land()
        if self.flights and self.info.runs_ahead and not self.scheduler.assume():
            return self.land()
        batch = self.launch()
        if not self.flights or (batch and len(self.flights) < (2 if self.info.runs_ahead else self.info.pipeline)):
            return batch
        oldest = self.land()
        return batch or oldest

    def launch(self) -> StepBatch:
        """Plan a step, check every invariant, and launch it."""
        batch = self.scheduler.plan()
        for update in self.scheduler.take_returned():
            self._submit_again(update)
        self._planned.append((batch, copied(batch)))
        self.check(batch)
        if self.lack and batch.n_tokens > self.info.max_sequences and self.lack.random() < 0.3:
            faults = self.runner.step(replace(batch, slices=())).media_faults
            self._take(self.scheduler.retract(batch.n_tokens, faults))
        elif batch:
            self.flights.append((batch, self.runner.launch(batch)))
        return batch

    def _submit_again(self, update: Update) -> None:
        """Do what the service does with a sequence that the engine cannot go on with."""
        assert update == Update(update.id, finish=AGAIN)
        n_scored = sum(len(item.prompt_logprobs) for item in self.updates[update.id])
        request = self._requests[update.id]
        output, n_scored = [*request.output, *self.answers[update.id]], request.n_scored + n_scored
        self.scheduler.submit(replace(request, output=output, n_scored=n_scored))
        self.n_again += 1

    def land(self) -> StepBatch:
        """Read and commit the oldest step in flight."""
        batch, wait = self.flights.popleft()
        self._take(self.scheduler.commit(wait()))
        return batch

    def _take(self, updates: list[Update]) -> None:
        for update in updates:
            assert update.id not in self.finished
            self.answers[update.id] += update.tokens
            self.updates[update.id].append(update)
            if update.finish:
                self.finished[update.id] = update.finish
        for update in self.scheduler.take_returned():
            self._submit_again(update)
        for pool in self.scheduler.pools:
            pool.check()

    def run(self, limit: int = 2000) -> None:
        """Step until there is no work."""
        for _ in range(limit):
            if not self.scheduler.has_work and not self.flights:
                self.check_idle()
                return
            assert self.step(), "work is left but the step is empty"
        raise AssertionError(f"not done after {limit} steps")

    def check_idle(self) -> None:
        """Check that all pages are accounted for, and that no planned slice has changed since."""
        self.scheduler.check_idle()
        assert all(copied(batch) == copy for batch, copy in self._planned)

    def check(self, batch: StepBatch) -> None:
        assert batch.n_tokens <= self.max_step_tokens
        assert len({item.sequence_id for item in batch.slices}) == len(batch.slices)
        for index, spec in enumerate(self.info.pools):
            self._check_writers(batch, index)
            if spec.window is not None:
                self._check_bound(batch, index, spec.window)

    def _check_writers(self, batch: StepBatch, index: int) -> None:
        """A page has one writer in a step, and only slices that begin behind the page share it."""
        size = self.info.page_size
        written: dict[int, tuple[int, int]] = {}  # page -> who writes to it, and the position after it
        for item in batch.slices:
            table = item.tables[index]
            for block in range(item.start // size, (item.stop - 1) // size + 1):
                page = table.pages[block - table.first_block]
                assert page not in written
                written[page] = (item.sequence_id, (block + 1) * size)
        for item in batch.slices:
            for page in item.tables[index].pages:
                writer, end = written.get(page, (item.sequence_id, 0))
                assert writer == item.sequence_id or item.start >= end

    def _check_bound(self, batch: StepBatch, index: int, window: int) -> None:
        for item in batch.slices:
            flights = [other for batch, _ in self.flights for other in batch.slices]
            chunk = item.stop - min(other.start for other in (item, *flights) if other.sequence_id == item.sequence_id)
            bound = -(-(window - 1 + chunk) // self.info.page_size) + 1
            assert len(item.tables[index].pages) <= bound


class Client:
    """A client of an engine loop: it sends the messages of a script, then Stop when the loop waits for more."""

    def __init__(
        self, runner: Runner, script: Sequence[Sequence[ToEngine]], *, max_sequences: int = 4, max_step_tokens: int = 8
    ) -> None:
        self.scheduler = Scheduler(runner.info, max_sequences=max_sequences, max_step_tokens=max_step_tokens)
        self.answers: dict[int, list[int]] = defaultdict(list)
        self.logprobs: dict[int, list[TokenLogprob]] = defaultdict(list)
        self.finished: dict[int, str] = {}
        self.stats: list[Stats] = []
        self._script = list(script)[::-1]
        self.n_ahead = 0  # steps planned before the one before was done
        assume = self.scheduler.assume

        def counted() -> bool:
            ahead = assume()
            self.n_ahead += ahead
            return ahead

        self.scheduler.assume = counted  # type: ignore[method-assign]
        EngineLoop(runner, self.scheduler, self.receive, self.send).run()

    def receive(self, block: bool) -> list[ToEngine]:
        for pool in self.scheduler.pools:
            pool.check()
        if self._script:
            return list(self._script.pop())
        return [Stop()] if block else []

    def send(self, message: FromEngine) -> None:
        assert isinstance(message, Report)
        self.stats.append(message.stats)
        for update in message.updates:
            assert update.id not in self.finished
            self.answers[update.id] += update.tokens
            self.logprobs[update.id] += update.logprobs
            if update.finish:
                self.finished[update.id] = update.finish
