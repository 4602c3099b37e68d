"""The engine's loop: take in messages, plan, step, commit, report. Nothing else happens in the engine process."""

import logging
import time
from collections.abc import Callable

from model.batch import Runner
from service.engine.messages import Abort, FromEngine, Report, Stop, Submit, ToEngine, Update
from service.engine.scheduler import Scheduler

log = logging.getLogger("noria.engine")

MAX_FAILED_STEPS = 3


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
        self._failed_steps = 0

    def run(self) -> None:
        """Serve until a Stop arrives. An error that repeats is raised: the process is then replaced."""
        self._send(Report((), self._scheduler.stats()))  # the pools can be seen before the first request
        while True:
            if not self._scheduler.has_work:
                self._scheduler.check_idle()
            updates: list[Update] = []
            for message in self._receive(not self._scheduler.has_work):
                if isinstance(message, Stop):
                    return
                updates += self._take(message)
            self._send(self._step(updates))

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
        """One step; its report carries `updates` of requests that were refused as well."""
        started = time.monotonic()
        batch = self._scheduler.plan()
        if not batch.slices:
            return Report(tuple(updates), self._scheduler.stats())
        try:
            output = self._runner.step(batch)
        except Exception:
            self._failed_steps += 1
            if self._failed_steps >= MAX_FAILED_STEPS:
                raise
            log.exception("a step of %d tokens failed; its requests end with an error", batch.n_tokens)
            updates = updates + self._scheduler.fail_step()
        else:
            self._failed_steps = 0
            updates = updates + self._scheduler.commit(output)
        return Report(tuple(updates), self._scheduler.stats(batch.n_tokens, time.monotonic() - started))
