"""The engine's loop: take in messages, plan, step, commit, report. Nothing else happens in the engine process."""

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from model.batch import Runner, StepOutput
from service.engine.messages import Abort, FromEngine, Report, Stats, Stop, Submit, ToEngine, Update
from service.engine.scheduler import Scheduler

log = logging.getLogger("noria.engine")

MAX_FAILED_STEPS = 3


class Flight(NamedTuple):
    """A step that was launched."""

    n_tokens: int
    launched: float
    wait: Callable[[], StepOutput]


class EngineLoop:
    """Runs steps until told to stop.

    `receive(block)` returns the messages that have arrived, waiting for at least one when `block`.
    `send` takes a message for the service.
    """

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        receive: Callable[[bool], list[ToEngine]],
        send: Callable[[FromEngine], None],
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._receive = receive
        self._send = send
        self._flight: Flight | None = None
        self._failed_steps = 0
        self._landed = 0.0

    def run(self) -> None:
        """Serve until a Stop arrives. An error that repeats is raised: the process is then replaced."""
        self._send(Report((), self._scheduler.stats()))  # the pools can be seen before the first request
        while True:
            updates: list[Update] = []
            for message in self._receive(self._rests()):
                if isinstance(message, Stop):
                    return
                updates += self._take(message)
            self._send(self._step(updates))

    def _rests(self) -> bool:
        """Whether there is nothing to do but wait for messages."""
        if self._scheduler.has_work or self._flight is not None:
            return False
        self._scheduler.check_idle()
        return not self._runner.rest()

    def _take(self, message: ToEngine) -> list[Update]:
        if isinstance(message, Abort):
            self._scheduler.abort(message.id)
        elif isinstance(message, Submit):
            try:
                self._scheduler.submit(message)
            except ValueError as error:
                log.error("sequence %d refused: %s", message.id, error)
                return [Update(message.id, finish="error")]
        return []

    def _step(self, updates: list[Update]) -> Report:
        """Launch a step and take in the one before it, or this one if the runner does not run ahead.

        The report carries `updates` of requests that were refused as well.
        """
        flight, self._flight = self._flight, None
        landed = flight
        if flight is not None and not self._scheduler.assume():
            updates += self._land(flight)
            flight = None
        batch = self._scheduler.plan()
        if batch.slices:
            try:
                self._flight = Flight(batch.n_tokens, time.monotonic(), self._runner.launch(batch))
            except Exception:
                updates += self._fail(batch.n_tokens)
                flight = None
        if not self._runner.info.runs_ahead:
            landed = flight = self._flight
            self._flight = None
        if flight is not None:
            updates += self._land(flight)
        return Report(tuple(updates), self._stats(landed))

    def _land(self, flight: Flight) -> list[Update]:
        """Wait for a step, take in what it gave."""
        try:
            output = flight.wait()
        except Exception:
            return self._fail(flight.n_tokens)
        self._failed_steps = 0
        return self._scheduler.commit(output)

    def _fail(self, n_tokens: int) -> list[Update]:
        """For an exception that is being handled: what flies is lost too, since it builds on the step that failed."""
        self._failed_steps += 1
        if self._failed_steps >= MAX_FAILED_STEPS:
            raise
        log.exception("a step of %d tokens failed; its requests end with an error", n_tokens)
        self._flight = None
        return self._scheduler.fail_steps()

    def _stats(self, landed: Flight | None) -> Stats:
        """With what the landed step took beyond the one before it."""
        if landed is None:
            return self._scheduler.stats()
        now = time.monotonic()
        since, self._landed = max(self._landed, landed.launched), now
        return self._scheduler.stats(landed.n_tokens, now - since)
