"""The middleware for every request: an id, the checks of page and key, a log line, metrics, a response to any error."""

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from urllib.parse import quote

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.http.connection.browsers import BrowserRules
from service.http.dialects import error_response
from service.http.errors import Unauthorized
from service.http.keys.key import Key
from service.http.keys.keys import Keys
from service.http.policy import Policies, Policy
from service.http.record import CLIENT_GONE, RequestRecord
from service.http.sse import ClientGone
from service.metrics import Metrics

log = logging.getLogger("noria.access")
log_of_requests = logging.getLogger("noria.request")

REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
LONG_SECONDS = 10.0
"""A request that is not finished by then gets a line in the log. Others have one line, at their end."""
Trace = Callable[[RequestRecord, Scope, float], str | None]
"""Makes the trace of a request that ended at a time by perf_counter; returns its id if it has one."""


class RequestMiddleware:
    """ASGI middleware. It adds `noria.record` to the scope, and `noria.send`, which bypasses the middlewares inside.

    `trace` is called for each request that is not quiet; None without traces.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        metrics: Metrics,
        policies: Policies,
        browsers: BrowserRules,
        trace: Trace | None = None,
    ) -> None:
        self._trace = trace
        self._app = app
        self._policies = policies
        self._keys = keys
        self._metrics = metrics
        self._browsers = browsers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path = scope["path"]
        record = RequestRecord(request_id(scope), scope["method"], path, *self._policies.of(path), _address(scope))
        scope["noria.record"], scope["noria.send"] = record, send

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message["headers"], *record.headers()]
            await send(message)

        slow = asyncio.get_running_loop().call_later(LONG_SECONDS, _report_long, record)
        if record.policy.quiet:
            slow.cancel()
        try:
            await self._serve(record, scope, receive, send_marked)
        finally:
            slow.cancel()
            self._finish(record, scope)

    async def _serve(self, record: RequestRecord, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers: dict[bytes, bytes] = dict(scope["headers"])
            if (refusal := self._browsers.refusal(headers, is_page=record.policy.page)) is not None:
                raise refusal
            record.key = self._find_key(headers, record.policy)
            if record.key is not None:
                record.owner = record.key.entry.identity
            with record.key.request() if record.key and not record.policy.quiet else nullcontext():
                await self._app(scope, receive, send)
        except (ClientGone, ClientDisconnect):
            record.status = CLIENT_GONE
        except Exception as error:
            response = error_response(error, record.policy.dialect)
            if record.status is None:
                await response(scope, receive, send)

    def _find_key(self, headers: Mapping[bytes, bytes], policy: Policy) -> Key | None:
        """The request's key; None if it needs none. Raises Unauthorized for a wrong one, and for none."""
        if not self._keys or policy.open:
            return None
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        keys = [key.strip()] if scheme.lower() == b"bearer" else []
        name = policy.dialect.key_header
        if name is not None and (other := headers.get(name.encode())) is not None:
            keys.append(other.strip())
        if (found := self._keys.find(keys)) is None:
            raise Unauthorized(name)
        return found

    def _finish(self, record: RequestRecord, scope: Scope) -> None:
        ended = time.perf_counter()
        seconds = ended - record.started
        status = record.status = record.status or CLIENT_GONE
        self._count(record, status, seconds)
        trace = None if self._trace is None or record.policy.quiet else self._trace(record, scope, ended)
        record.params = None  # the record is remembered, and a grammar may be large
        level = logging.DEBUG if record.policy.quiet else logging.INFO
        if not log.isEnabledFor(level):
            return
        fields = {
            "id": record.id,
            "status": status,
            "outcome": record.outcome,
            "trace": trace,
            "client": record.client,
            "key": record.tenant or None,
            "user": record.user,
            "adapter": record.adapter,
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "generated_tokens": record.generated_tokens,
            "queue_s": _rounded(record.queue_seconds),
            "ttft_s": _rounded(record.first_token_seconds),
            "total_s": _rounded(seconds),
        }
        log.log(level, "%s %s", record.method, _encoded(record.path), extra={"fields": fields})

    def _count(self, record: RequestRecord, status: int, seconds: float) -> None:
        self._metrics.observe_response(record.method, record.route, status)
        if not record.policy.generates:
            return
        record.outcome = record.outcome or outcome_of(status)
        self._metrics.observe_request(record.outcome, seconds)
        if record.outcome == "error" and status == 200:
            self._metrics.observe_broken_stream()
        self._account(record, record.outcome)

    def _account(self, record: RequestRecord, outcome: str) -> None:
        """Count a finished request as use of its adapter and of its key."""
        generated = record.generated_tokens or 0
        if record.adapter is not None:
            self._metrics.adapters.observe(record.adapter, outcome, generated)
        if record.key is None:
            return
        record.key.charge(generated)
        self._metrics.observe_key(record.key.name, outcome, record.prompt_tokens or 0, generated)


def _report_long(record: RequestRecord) -> None:
    fields = {"id": record.id, "waits_for": record.waits_for, "prompt_tokens": record.prompt_tokens}
    message = "%s %s is not finished after %g s"
    log_of_requests.info(message, record.method, _encoded(record.path), LONG_SECONDS, extra={"fields": fields})


def outcome_of(status: int) -> str:
    """The outcome of a request that did not reach the engine."""
    if status == CLIENT_GONE:
        return "abort"
    return "refused" if status < 500 or status == 503 else "error"


def request_id(scope: Scope) -> str:
    """The client's `x-request-id` if it is short and plain, else a new one."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    return given.decode() if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _address(scope: Scope) -> str | None:
    """The client's IP address; None on a socket that has none."""
    client = scope.get("client")
    return client[0] if client else None


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


def _encoded(path: str) -> str:
    """The path as in a URL: without spaces, which end it in a line of the log."""
    return quote(path, safe="/:@!$&'()*+,;=~")
