"""The engine's loop: take messages, plan, launch, read, commit, report.

There are two: one runs a step ahead, the other keeps a pipeline busy, which may have one stage.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from model.batch import BROKEN_NUMBERS, DeviceLost, Runner, StepBatch, StepOutput, StepTooLarge
from service.engine.messages import (
    Abort,
    Follow,
    FromEngine,
    Look,
    Report,
    Stop,
    Submit,
    ToEngine,
    UnloadAdapter,
    Update,
)
from service.engine.progress import StallClock, StepRecorder
from service.engine.scheduling.scheduler import Scheduler
from service.engine.tape import Tape

log = logging.getLogger("noria.engine")

MAX_FAILED_STEPS = 3


Message = ToEngine | Callable[[Scheduler], None]
"""A message of the service, or news of another thread: that pages have moved, or that an adapter is read again."""


class Flight(NamedTuple):
    """A step in flight: launched, its result not read yet."""

    batch: StepBatch
    n_tokens: int
    launched: float
    step: int
    wait: Callable[[], StepOutput]


class EngineLoop:
    """The loop of the engine: it runs steps until a Stop arrives.

    `receive(block)` returns the messages that have arrived; with `block` it waits for at least one. `send` sends a
    message to the service. `clock` is told which sequences make progress. `preparing` returns the ids of sequences that
    will arrive later, each with the length of its prompt. `tape` has the latest steps.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        receive: Callable[[bool], Sequence[Message]],
        send: Callable[[FromEngine], None],
        clock: StallClock | None = None,
        preparing: Callable[[], Mapping[int, int]] = dict,
        tape: Tape | None = None,
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._receive = receive
        self._send = send
        self._clock = clock or StallClock()
        self._preparing = preparing
        self._tape = tape or Tape()
        self._steps = StepRecorder()
        self._looks: list[Look] = []  # to be answered after the present step
        self._flights: deque[Flight] = deque()  # oldest first
        self._waits_for_files = False  # and for nothing else
        self._failed_steps = 0
        self._landed_at = 0.0
        self._landed = 0  # tokens of the step that was read since the last report

    def run(self) -> None:
        """Serve until a Stop arrives. Raises the error of a step if it repeats; the process is then replaced."""
        self._report([])  # metrics show the pools before the first request
        if self._runner.info.runs_ahead and self._runner.info.pipeline == 1:
            self._run_ahead()
        else:
            self._run_pipeline()

    def _run_ahead(self) -> None:
        """Launch the next step, then read the one before it. Where the scheduler cannot plan that far, read first."""
        while (updates := self._take_messages()) is not None:
            ahead = bool(self._flights) and self._scheduler.assume()
            if not ahead:
                updates += self._land()
            updates += self._launch()
            if ahead:
                updates += self._land()
            self._report(updates)

    def _run_pipeline(self) -> None:
        """Launch steps until every stage has one or nothing is left to plan, then read the oldest."""
        while (updates := self._take_messages()) is not None:
            n_before = -1
            while n_before < len(self._flights) < self._runner.info.pipeline:
                n_before = len(self._flights)
                updates += self._launch()
            updates += self._land()
            self._report(updates)

    def _take_messages(self) -> list[Update] | None:
        """Take the messages that have arrived; returns updates of sequences that are refused, or None at a Stop."""
        updates: list[Update] = []
        for message in self._receive(self._idle()):
            if isinstance(message, Stop):
                return None
            if isinstance(message, Abort):
                self._scheduler.abort(message.id)
            elif isinstance(message, Look):
                self._looks.append(message)
            elif isinstance(message, Follow):
                self._scheduler.changes.follow()
            elif isinstance(message, UnloadAdapter):
                self._runner.adapters.unload(message.adapter)
            elif isinstance(message, Submit):
                try:
                    self._scheduler.submit(message)
                except ValueError as error:
                    log.error("sequence %d refused: %s", message.id, error)
                    updates += (Update(sequence_id, finish="error") for sequence_id in message.ids)
            elif callable(message):
                message(self._scheduler)
        return updates

    def _idle(self) -> bool:
        """Return whether only messages are left to wait for."""
        if self._flights or (self._scheduler.has_work and not self._waits_for_files):
            return False
        self._scheduler.check_idle()
        self._scheduler.save_pages()
        self._landed_at = 0.0  # the next step begins with its launch
        return not self._runner.idle()

    def _launch(self) -> list[Update]:
        """Plan and launch a step. If that fails, read the steps in flight first: they do not depend on the new one."""
        began = time.monotonic()
        batch, launched = self._scheduler.plan(), time.monotonic()
        self._clock.note(self._scheduler.due)
        self._waits_for_files = not batch and not self._flights and self._scheduler.waits_for_files
        if batch:
            n_tokens = batch.n_tokens
            if log.isEnabledFor(logging.DEBUG):
                counts = n_tokens, len(batch.slices), len(batch.media)
                log.debug("a step computes %d tokens of %d sequences, and encodes %d media items", *counts)
            try:
                step = self._tape.begin(n_tokens, batch.n_prompt, len(batch.slices), launched - began)
                wait = self._runner.launch(batch)
                self._flights.append(Flight(batch, n_tokens, launched, step, wait))
            except StepTooLarge as error:
                log.warning("%d tokens of a step do not fit into memory: they are planned again", batch.n_tokens)
                return self._scheduler.retract(batch.n_tokens, error.media_faults)
            except Exception as error:
                failed_before, updates = self._failed_steps, []
                while self._flights:
                    updates += self._land()
                self._failed_steps = min(self._failed_steps, failed_before)  # if they fail, too, it is one incident
                return updates + self._fail(error, batch.n_tokens)
        return []

    def _land(self) -> list[Update]:
        """Read the oldest step in flight, if there is one, and commit its result."""
        if not self._flights:
            return []
        flight = self._flights.popleft()
        output, began = None, time.monotonic()
        try:
            output = flight.wait()
            computed = time.monotonic()
        except Exception as error:
            updates = self._fail(error, flight.n_tokens)
        else:
            updates = self._scheduler.commit(output)
            self._count(flight.batch, output, reported=bool(updates))
            self._clock.note(self._scheduler.due, done=self._scheduler.advanced)
            self._tape.end(flight.step, began - flight.launched, computed - began, time.monotonic() - computed)
        before, self._landed_at = self._landed_at, time.monotonic()
        self._landed = flight.n_tokens
        if output is not None and flight.n_tokens:
            self._steps.note(flight.batch, flight.n_tokens, self._landed_at - max(before, flight.launched))
        if output is not None and not (output.media_faults or any(item.fault for item in output.slices)):
            self._note_cost(flight, before, output)  # a slice with a fault may not have been computed
        return updates

    def _note_cost(self, flight: Flight, before: float, output: StepOutput) -> None:
        """Note the pace of a step, and its cost if it is of tokens alone.

        In a pipeline both are of all steps between two steps of one sequence.
        """
        flights = [flight, *self._flights] if self._runner.info.pipeline > 1 else [flight]
        seconds = self._landed_at - (flight.launched if len(flights) > 1 else before or flight.launched)
        n_tokens = sum(item.n_tokens for item in flights)
        n_pairs = sum(item.batch.n_pairs for item in flights)
        if work := n_tokens + self._encoded(flights):
            self._scheduler.prompts.pace.note(work, n_pairs, seconds)
        if work == n_tokens > 0:
            n_prompt = sum(item.batch.n_prompt for item in flights)
            cost = self._scheduler.prompts.cost
            cost.note(n_tokens - n_prompt, n_prompt, n_pairs, seconds - output.draft_seconds)
            if output.draft_passes:
                cost.note_passes(output.draft_passes, output.draft_seconds)

    def _encoded(self, flights: Iterable[Flight]) -> float:
        """Return the work of the encoder in these steps, in tokens that take as long."""
        n_patches = sum(work.stop - work.start for flight in flights for work in flight.batch.media)
        media = self._runner.info.media
        return n_patches / media.patches_per_token if media else 0

    def _count(self, batch: StepBatch, output: StepOutput, reported: bool) -> None:
        """Count a step in which every sequence is broken, or nothing can be encoded, as a failed one.

        Then no single sequence is to blame. Where every sequence uses an adapter, one may be: such a step does not
        count. Neither does the step after a broken one. It was launched already, is as broken, and reports nothing.
        """
        with_adapters = bool(batch.slices) and all(item.adapter for item in batch.slices)
        encoded = len(batch.media) > len(output.media_faults)
        if encoded or any(item.fault != BROKEN_NUMBERS for item in output.slices):
            self._failed_steps = 0
        elif reported and not with_adapters:
            self._failed_steps += 1
        if self._failed_steps >= MAX_FAILED_STEPS:
            reason = next(iter(output.media_faults.values()), BROKEN_NUMBERS)
            raise RuntimeError(f"{MAX_FAILED_STEPS} steps in a row failed for every sequence: {reason}")

    def _fail(self, error: Exception, n_tokens: int) -> list[Update]:
        """End the sequences of the failed step and of the steps after it, which depend on it."""
        self._failed_steps += 1
        if self._failed_steps >= MAX_FAILED_STEPS or isinstance(error, DeviceLost):
            raise error
        log.exception("a step of %d tokens failed; its requests end with an error", n_tokens)
        self._flights.clear()
        return self._scheduler.fail_steps()

    def _report(self, updates: list[Update]) -> None:
        updates += self._scheduler.take_returned()
        stats = self._scheduler.stats(self._landed)._replace(grammar_restarts=self._runner.grammar_restarts)
        self._send(Report(tuple(updates), stats, self._scheduler.changes.take()))
        self._landed = 0
        looks, self._looks = self._looks, []
        for look in looks:
            view = self._scheduler.view(self._preparing())
            self._send(view.of(look.ids) if look.ids else view.whole(self._steps.take()))
