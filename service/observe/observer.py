"""The report on each request at its end: metrics, a trace, and a line in the log."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from urllib.parse import quote

from starlette.types import Scope

from service.access.record import CLIENT_GONE, RequestRecord
from service.helpers import Recent
from service.observe.metrics import OTHER, Metrics

log = logging.getLogger("noria.access")
log_of_requests = logging.getLogger("noria.request")

LONG_SECONDS = 10.0
"""A request that is not finished by then gets a line in the log. Others have one line, at their end."""
MAX_CLIENTS = 4096
Trace = Callable[[RequestRecord, Scope, float], str | None]
"""Makes the trace of a request that ended at a time by perf_counter; returns its id if it has one."""


class Notices:
    """Lines in the log about ignored fields, one for each client. It remembers the last clients."""

    def __init__(self) -> None:
        self._clients: Recent[str, bool] = Recent(MAX_CLIENTS)

    def note(self, client: str, path: str, names: Sequence[str]) -> None:
        """Log the first request of a client that has ignored fields."""
        if self._clients.find(client) is None:
            self._clients.note(client, True)
            fields = {"client": client, "path": path, "fields": ", ".join(names)}
            log_of_requests.info("a client sends fields that have no effect here", extra={"fields": fields})


class Observer:
    """Metrics, log lines and traces of requests. `trace` gets each one that is not quiet; None without traces."""

    def __init__(self, metrics: Metrics, trace: Trace | None = None) -> None:
        self._metrics = metrics
        self._trace = trace
        self._notices = Notices()

    @contextmanager
    def observing(self, record: RequestRecord, scope: Scope) -> Iterator[None]:
        """Observe a request, which is served inside the context and has filled its record at the end."""
        slow = asyncio.get_running_loop().call_later(LONG_SECONDS, _report_long, record)
        if record.policy.quiet:
            slow.cancel()
        try:
            yield
        finally:
            slow.cancel()
            self._finish(record, scope)

    def _finish(self, record: RequestRecord, scope: Scope) -> None:
        ended = time.perf_counter()
        seconds = ended - record.started
        status = record.status = record.status or CLIENT_GONE
        self._count(record, status, seconds)
        trace = None if self._trace is None or record.policy.quiet else self._trace(record, scope, ended)
        if record.ignored:
            self._notices.note(record.sender, record.path, record.ignored)
        record.params = None  # the record is remembered, and a grammar may be large
        level = logging.DEBUG if record.policy.quiet else logging.INFO
        if not log.isEnabledFor(level):
            return
        fields = {
            **{name: getattr(record, name) for name in ("id", "status", "outcome")},
            **record.error,
            "trace": trace,
            "client": record.client,
            "key": record.tenant or None,
            "user": record.user,
            "model": record.served,
            "adapter": record.adapter,
            "prompt_tokens": record.prompt_tokens,
            **{name: getattr(record.generation, name) for name in ("cached_tokens", "generated_tokens")},
            "load_s": _rounded(record.load_seconds or None),
            "queue_s": _rounded(record.generation.queue_seconds),
            "ttft_s": _rounded(record.generation.first_token_seconds),
            "total_s": _rounded(seconds),
        }
        log.log(level, "%s %s", record.method, _encoded(record.path), extra={"fields": fields})

    def _count(self, record: RequestRecord, status: int, seconds: float) -> None:
        self._metrics.observe_response(record.method, record.route, status)
        if record.route is not None:
            self._metrics.observe_fields(record.route, record.ignored, "ignored")
            self._metrics.observe_fields(record.route, record.refused, "refused")
        if not record.policy.generates:
            return
        record.outcome = record.outcome or outcome_of(status)
        if record.outcome == "error" and status == 200:
            self._metrics.observe_broken_stream()
        generated = record.generation.generated_tokens or 0
        if record.key is not None:
            record.key.charge(generated)
        if record.outcome == "refused":
            self._metrics.observe_refusal(record.tenant, record.error["code"] or OTHER)
        if record.served is None:
            if status != 429:  # a limit of the key, or of bodies in memory
                self._metrics.observe_unnamed(record.outcome, record.tenant)
            return
        of_model = self._metrics.of_model(record.served)
        of_model.observe_request(record.outcome, seconds)
        if record.adapter is not None:
            of_model.adapters.observe(record.adapter, record.outcome, generated)
        if record.key is not None:
            of_model.observe_key(record.key.name, record.outcome, record.prompt_tokens or 0, generated)


def _report_long(record: RequestRecord) -> None:
    facts = {"key": record.tenant or None, "client": record.client, "model": record.served}
    fields = {"id": record.id, **facts, "waits_for": record.waits_for, "prompt_tokens": record.prompt_tokens}
    message = "%s %s is not finished after %g s"
    log_of_requests.info(message, record.method, _encoded(record.path), LONG_SECONDS, extra={"fields": fields})


def outcome_of(status: int) -> str:
    """Return the outcome of a request that did not reach the engine."""
    if status == CLIENT_GONE:
        return "abort"
    return "refused" if status < 500 or status == 503 else "error"


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


def _encoded(path: str) -> str:
    """Return the path as in a URL: without spaces, which end it in a line of the log."""
    return quote(path, safe="/:@!$&'()*+,;=~")
