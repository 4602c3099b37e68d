"""The middleware that makes the record of a request, checks its key, and answers its errors."""

import re
import uuid
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.access.browsers import BrowserRules
from service.access.headers import ID
from service.access.keys import Key, Keys
from service.access.record import CLIENT_GONE, LAST, Policies, Policy, RequestRecord
from service.errors.dialects import error_response
from service.errors.errors import Unauthorized, as_api_error
from service.http.sse import ClientGone

REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class RequestMiddleware:
    """ASGI middleware. It adds `noria.record` to the scope, and `noria.send`, which bypasses the middlewares inside.

    A request is served inside the context of `observing`.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        policies: Policies,
        browsers: BrowserRules,
        observing: Callable[[RequestRecord, Scope], AbstractContextManager[None]],
    ) -> None:
        self._app = app
        self._keys = keys
        self._policies = policies
        self._browsers = browsers
        self._observing = observing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path, client = scope["path"], scope.get("client") or (None,)  # a Unix socket has no address
        record = RequestRecord(request_id(scope), scope["method"], path, *self._policies.of(path), client[0])
        scope["noria.record"], scope["noria.send"] = record, send

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                record.status = message["status"]
                message["headers"] = [*message["headers"], *record.headers()]
            await send(message)

        with self._observing(record, scope):
            await self._serve(record, scope, receive, send_marked)

    async def _serve(self, record: RequestRecord, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers: dict[bytes, bytes] = dict(scope["headers"])
            if (refusal := self._browsers.refusal(headers, is_page=record.policy.page)) is not None:
                raise refusal
            record.key = self._find_key(headers, record.policy)
            if record.key is not None:
                record.owner = record.key.entry.identity
            with record.place:
                if record.key is not None and not record.policy.quiet:
                    reads = record.policy.resumes and LAST.encode() in headers
                    record.place.enter_context(record.key.request(reads=reads))
                await self._app(scope, receive, send)
        except (ClientGone, ClientDisconnect):
            record.status = CLIENT_GONE
        except Exception as error:
            response = _refusal(error, record)
            if record.status is None:
                await response(scope, receive, send)

    def _find_key(self, headers: Mapping[bytes, bytes], policy: Policy) -> Key | None:
        """Return the request's key; None if it needs none. Raises Unauthorized for a wrong one, and for none."""
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


def _refusal(error: Exception, record: RequestRecord) -> Response:
    """Return the answer to a request that failed. No frame may hold the error, which holds the frames."""
    failure = as_api_error(error)
    record.note_error(failure)
    return error_response(failure, record.policy.dialect)


def request_id(scope: Scope) -> str:
    """Return the client's `x-request-id` if it is short and plain, else a new one."""
    given = next((value for name, value in scope["headers"] if name == ID), b"")
    return given.decode() if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
