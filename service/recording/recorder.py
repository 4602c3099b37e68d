"""The recorder: a ring of one sample a second, and the files that are written when an engine or the server dies."""

import asyncio
import logging
import os
import time
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import orjson
from typing_extensions import TypedDict  # pydantic, which reads it, needs this one before Python 3.12

from service.engine.tape import FIELDS
from service.hosting.drain import Drain
from service.hosting.hosted import FOLDERS, HostedModel
from service.hosting.models import HostedModels
from service.observe.metrics import Metrics
from service.observe.model_metrics import TOTALS
from service.recording.explain import WINDOW, explain
from service.settings import Settings

log = logging.getLogger("noria.record")

SECONDS, PAUSE = 600, 1.0
"""Samples in the ring, and seconds between two, as compressed JSON: about 1 kB each."""
RETRIED = ("queue_full", "rate_limit_exceeded", "model_loading", "model_failed", "shutting_down", "engine_unavailable")
"""Codes of refusals that are no mistake of a client."""


class EngineRecord(TypedDict):
    """The last ten minutes, the oldest first. `steps` of each model have `step_fields`."""

    time: float
    samples: list[dict[str, Any]]
    events: list[dict[str, Any]]
    stacks: list[dict[str, Any]]
    step_fields: list[str]
    steps: dict[str, list[list[float | None]]]


class Recorder:
    """The ring of a server. The journal of `metrics` gets the sentence on what is wrong each second."""

    def __init__(
        self, settings: Settings, models: HostedModels, drain: Drain, metrics: Metrics, store_errors: Callable[[], int]
    ) -> None:
        self._directory, self._limit = settings.record_dir, settings.record_dir_size
        self._models, self._drain, self._metrics, self._store_errors = models, drain, metrics, store_errors
        self._journal = metrics.journal
        self._samples: deque[bytes] = deque(maxlen=SECONDS)
        self._latest: deque[dict[str, Any]] = deque(maxlen=WINDOW + 1)
        self._before = time.monotonic(), time.time(), time.process_time()
        self._thread = ThreadPoolExecutor(1, "noria-record")
        self._thread.submit(int)  # start the thread now: later the system may allow no more

    async def run(self) -> None:
        """Take samples until cancelled, and write the record after each death of an engine."""
        n_told, on_thread = 0, partial(asyncio.get_running_loop().run_in_executor, self._thread)
        while True:
            await asyncio.sleep(PAUSE)
            try:
                self.take(self._facts() | await on_thread(self._metrics.read_system))
                if self._journal.n_deaths > n_told:
                    n_told = self._journal.n_deaths
                    await on_thread(self.write, "death")
            except Exception:
                log.exception("a sample of the record cannot be taken")

    def take(self, facts: dict[str, Any]) -> None:
        """Add a sample, with the time since the one before, and say what is wrong."""
        now = time.monotonic(), time.time(), time.process_time()
        passed, wall, worked = (round(new - old, 3) for new, old in zip(now, self._before, strict=True))
        self._before = now
        still = passed if worked < passed / 4 else 0.0  # more than a second means that nothing ran
        times = {"time": now[1], "passed": passed, "jump": abs(wall - passed), "worked": worked, "stood_still": still}
        self._latest.append(times | facts)
        self._samples.append(zlib.compress(orjson.dumps(self._latest[-1]), 1))
        events = [event for event in self._journal.events.copy() if event["time"] > now[1] - WINDOW]
        found = explain({"time": now[1], "samples": [*self._latest], "events": events})
        self._journal.trouble = FOLDERS.sub("", found.sentence) if found.rule.name else None  # for everyone

    def record(self) -> EngineRecord:
        """Return all that is known. For any thread."""
        return {
            "time": time.time(),
            "samples": [orjson.loads(zlib.decompress(item)) for item in self._samples.copy()],
            "events": [*self._journal.events.copy()],
            "stacks": [*self._journal.stacks.copy()],
            "step_fields": [*FIELDS],
            "steps": {model.name: model.client.steps() for model in self._models},
        }

    def write(self, why: str) -> None:
        """Write the record into --record-dir, if there is one, and remove the oldest. Waits for the disk."""
        if self._directory is None:
            return
        path = self._directory / f"noria-{time.strftime('%Y%m%d-%H%M%S')}-{why}.json"
        try:
            with open(path, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                file.write(orjson.dumps(self.record()))
            log.warning("the record of the last minutes is written", extra={"fields": {"file": path.name}})
            left = self._limit
            for old in sorted(self._directory.glob("noria-*.json"), reverse=True):
                left -= old.stat().st_size
                if left < 0 and old != path:
                    old.unlink()
        except OSError as error:
            log.error("--record-dir: the record cannot be written: %s", error.strerror)

    def _facts(self) -> dict[str, Any]:
        refused, drains = dict(self._journal.refused), self._drain.draining
        mistakes = sum(n for code, n in refused.items() if code not in RETRIED)
        counts = {"store_errors": self._store_errors(), "canary_wrong": self._journal.n_wrong, "mistakes": mistakes}
        models = {model.name: _of_model(model) for model in self._models}
        return {"lag": self._metrics.lag(), "draining": drains, **counts, "refused": refused, "models": models}


def _of_model(model: HostedModel) -> dict[str, Any]:
    client, counts, stalled = model.client, model.metrics, model.metrics.beat.stalled
    limit = model.entry.settings.step_timeout
    return {
        **client.stats._replace(adapters=())._asdict(),
        **{name: counts.total(name) for name in TOTALS},
        "state": model.state,
        "stage": client.stage,
        "progress": client.progress,
        "reason": model.failure,
        "waits_for": model.waits_for,
        "loading": model.waiting.total,
        "generated": counts.generated,
        "stalled": stalled,
        "step_timeout": limit,
        "stalled_share": stalled / limit,
        "waits": counts.latest_waits,
        "usage": counts.usage(),
        "disk_error": os.strerror(client.stats.disk_error),
    }
