"""What surrounds every request: its id, the key check, one log line, the counters, and the last resort for errors."""

import hmac
import logging
import re
import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.operations.health import OPEN_PATHS
from service.http.errors import ANTHROPIC_PATH, Unauthorized, error_response
from service.http.sse import ClientGone
from service.metrics import Metrics

log = logging.getLogger("noria.access")

GENERATION_PATHS = frozenset(
    {"/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/embeddings"}
)
QUIET_PATHS = OPEN_PATHS | {"/metrics"}
REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
CLIENT_GONE = 499
"""Status in the log of a request whose client left before the answer (nginx's number)."""


@dataclass(slots=True)
class RequestRecord:
    """What is known of a request when it ends: the log line and the counters come from here.

    Filled while the request is served. Times are seconds; None: it did not get that far.
    """

    id: str
    method: str
    path: str
    started: float = field(default_factory=time.perf_counter)
    status: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    generated_tokens: int | None = None
    queue_seconds: float | None = None
    first_token_seconds: float | None = None
    outcome: str | None = None
    user: str | None = None

    def headers(self) -> list[tuple[bytes, bytes]]:
        """What every answer says of its request; how long it waited, once that is known."""
        headers = [(b"x-request-id", self.id.encode())]
        if self.queue_seconds is not None:
            headers.append((b"x-queue-ms", b"%.1f" % (self.queue_seconds * 1000)))
        return headers


class RequestMiddleware:
    """ASGI middleware; the request's record is `scope["noria.record"]`, `scope["noria.send"]` leads past all below."""

    def __init__(self, app: ASGIApp, api_keys: Iterable[str], metrics: Metrics) -> None:
        self._app = app
        self._keys = [key.encode() for key in api_keys]
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        record = RequestRecord(request_id(scope), scope["method"], scope["path"])
        scope["noria.record"], scope["noria.send"] = record, send

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message["headers"], *record.headers()]
            await send(message)

        try:
            await self._serve(record, scope, receive, send_marked)
        finally:
            self._finish(record)

    async def _serve(self, record: RequestRecord, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._check_key(scope)
            await self._app(scope, receive, send)
        except (ClientGone, ClientDisconnect):
            record.status = CLIENT_GONE
        except Exception as error:
            response = error_response(error, record.path)
            if record.status is None:
                await response(scope, receive, send)

    def _check_key(self, scope: Scope) -> None:
        """Raise Unauthorized unless the path is open or a key fits; every key is compared, in constant time."""
        if not self._keys or scope["path"] in OPEN_PATHS:
            return
        headers = dict(scope["headers"])
        scheme, _, key = headers.get(b"authorization", b"").partition(b" ")
        given = [key.strip()] if scheme.lower() == b"bearer" else []
        if scope["path"].startswith(ANTHROPIC_PATH) and b"x-api-key" in headers:
            given.append(headers[b"x-api-key"].strip())
        fits = [hmac.compare_digest(key, known) for key in given for known in self._keys]
        if not any(fits):
            raise Unauthorized

    def _finish(self, record: RequestRecord) -> None:
        seconds = time.perf_counter() - record.started
        status = record.status or CLIENT_GONE
        if record.path in GENERATION_PATHS:
            record.outcome = record.outcome or outcome_of(status)
            self._metrics.observe_request(record.outcome, seconds)
        level = logging.DEBUG if record.path in QUIET_PATHS else logging.INFO
        if not log.isEnabledFor(level):
            return
        fields = {
            "id": record.id,
            "status": status,
            "outcome": record.outcome,
            "user": record.user,
            "prompt_tokens": record.prompt_tokens,
            "cached_tokens": record.cached_tokens,
            "generated_tokens": record.generated_tokens,
            "queue_s": _rounded(record.queue_seconds),
            "ttft_s": _rounded(record.first_token_seconds),
            "total_s": _rounded(seconds),
        }
        log.log(level, "%s %s", record.method, _one_line(record.path), extra={"fields": fields})


def outcome_of(status: int) -> str:
    """The outcome of a request that was never submitted."""
    if status == CLIENT_GONE:
        return "abort"
    return "refused" if status < 500 or status == 503 else "error"


def request_id(scope: Scope) -> str:
    """The client's `x-request-id` if it is harmless, else a fresh one."""
    given = next((value for name, value in scope["headers"] if name == b"x-request-id"), b"")
    return given.decode() if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 4)


def _one_line(path: str) -> str:
    return path if path.isprintable() else repr(path)
