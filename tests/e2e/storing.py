"""An engine with a store of pages, without a server."""

import threading
from typing import Any

from model.step.runner import ModelRunner
from service.engine.messages import Submit
from service.engine.prefixes.store import PrefixStore, open_store
from service.engine.scheduling.scheduler import Scheduler
from tests.e2e.without_server import Answer, Request
from tests.waiting import PATIENCE


class Engine:
    """A runner with a scheduler and its store."""

    def __init__(self, runner: ModelRunner) -> None:
        self.runner = runner
        self._moved = threading.Semaphore(0)
        store = open_store(runner.info, runner.pages, self._moved.release)
        assert store is not None
        self.store: PrefixStore = store
        self.scheduler = Scheduler(
            runner.info,
            max_sequences=8,
            max_step_tokens=runner.info.max_step_tokens,
            store=store,
            adapter_name=runner.adapters.fingerprint,
        )

    def serve(self, requests: list[Request], **more: Any) -> tuple[list[Answer], int]:
        """The answers, and the number of prompt tokens from the disk."""
        answers: list[Answer] = [[] for _ in requests]
        from_disk = 0
        for number, (tokens, params) in enumerate(requests):
            self.scheduler.submit(Submit(number, tokens, params, **more))
        while self.scheduler.has_work:
            batch = self.scheduler.plan()
            if not batch:
                assert self.scheduler.waits_for_files
                assert self._moved.acquire(timeout=PATIENCE), "the store does not wake the loop"
                continue
            for update in self.scheduler.commit(self.runner.step(batch)):
                answers[update.id] += zip(update.tokens, update.logprobs, strict=True)
                from_disk += update.admitted.from_disk if update.admitted else 0
        self.scheduler.check_idle()
        return answers, from_disk

    def end(self) -> None:
        self.scheduler.save_pages(PATIENCE)
