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


class ReplicaHeaders:
    """ASGI middleware that adds `x-noria-replica`, the replica's id in Ray's metrics and logs.

    It removes `x-request-id`, because Ray's proxy adds the same id again.
    """

    def __init__(self, app: ASGIApp, replica: str) -> None:
        self._app = app
        self._name = (b"x-noria-replica", replica.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_changed(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [
                    *(field for field in message["headers"] if field[0] != b"x-request-id"),
                    self._name,
                ]
            await send(message)

        await self._app(scope, receive, send_changed)
