"""What lies between Ray's proxy and the application in a replica."""

from contextlib import suppress

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.engine.client import EngineClient
from service.engine.mailbox import EngineUnavailable


class HoldWithoutEngine:
    """ASGI middleware that holds a POST while a fresh engine starts, instead of the application's 503.

    Ray's router knows no readiness: it sends most requests to the replica that has fewest. One that answers 503 at once
    would get them all; one that holds them gets fewer than the others.
    """

    def __init__(self, app: ASGIApp, client: EngineClient) -> None:
        self._app = app
        self._client = client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            with suppress(EngineUnavailable):  # the application says why
                await self._client.serving()
        await self._app(scope, receive, send)


class WithoutRequestId:
    """ASGI middleware that removes `x-request-id` from responses, because Ray's proxy adds the same id again."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_rest(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [field for field in message["headers"] if field[0] != b"x-request-id"]
            await send(message)

        await self._app(scope, receive, send_rest)
