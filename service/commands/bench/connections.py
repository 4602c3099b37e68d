"""An HTTP/1.1 client for load tests. It costs little processor time.

C code parses the answers, and arriving data starts no task.
"""

import asyncio
import ssl
from collections.abc import Callable
from typing import Any, Self

import httptools
import httpx
import orjson

OnBody = Callable[[int, bytes], None]
"""Called with the status and a part of the body, as it arrives."""


class CannotConnect(Exception):
    """No server accepts the connection."""


class HttpConnection(asyncio.Protocol):
    """A connection, which carries one request at a time."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self._transport: asyncio.WriteTransport | None = None
        self._ended: asyncio.Future[int] | None = None

    @property
    def is_free(self) -> bool:
        closing = self._transport is None or self._transport.is_closing()
        return not closing and (self._ended is None or self._ended.done())

    async def send(self, request: bytes, on_body: OnBody) -> int:
        """Send a request; returns its status after the end of the answer.

        Raises ConnectionError and errors of `on_body`.
        """
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._on_body = on_body
        self.status = 0
        self._ended = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._ended

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.lost.set_result(None)
        if self.status and error is None:  # the end of the connection may mark the end of the answer
            self._end(self.status)
        else:
            self._end(error or ConnectionResetError("the server closed the connection"))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:  # if a callback raised an error, that error is its context
            self._end(error.__context__ if isinstance(error.__context__, Exception) else ConnectionError(str(error)))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._on_body(self.status, body)

    def on_message_complete(self) -> None:
        if not self._parser.should_keep_alive():
            self.close()
        self._end(self.status)

    def _end(self, result: int | Exception) -> None:
        if self._ended is None or self._ended.done():
            return
        if isinstance(result, Exception):
            self._ended.set_exception(result)
        else:
            self._ended.set_result(result)


class Connections:
    """Connections to one server, one for each concurrent request. As a context manager it closes them at the end."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._url = httpx.URL(url)
        self._open: list[HttpConnection] = []
        self._head = f"host: {self._url.netloc.decode()}\r\ncontent-type: application/json\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in headers.items()
        )

    async def post(self, path: str, body: dict[str, Any], on_body: OnBody) -> int:
        """Send a request; returns its status after the end of the answer.

        Raises CannotConnect, OSError and errors of `on_body`.
        """
        content = orjson.dumps(body)
        target = self._url.path.rstrip("/") + path
        head = f"POST {target} HTTP/1.1\r\n{self._head}content-length: {len(content)}\r\n\r\n"
        request = head.encode() + content
        if (idle := self._idle()) is not None:
            try:
                return await self._send(idle, request, on_body)
            except ConnectionError:
                if idle.status:
                    raise
                # A server may close an idle connection just when the request is sent: send it again.
        return await self._send(await self._connect(), request, on_body)

    async def _send(self, connection: HttpConnection, request: bytes, on_body: OnBody) -> int:
        try:
            return await connection.send(request, on_body)
        except BaseException:
            connection.close()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        for connection in self._open:
            connection.close()
            await connection.lost

    def _idle(self) -> HttpConnection | None:
        self._open = [connection for connection in self._open if not connection.lost.done()]
        return next((connection for connection in self._open if connection.is_free), None)

    async def _connect(self) -> HttpConnection:
        secure = ssl.create_default_context() if self._url.scheme == "https" else None
        port = self._url.port or (443 if secure else 80)
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(HttpConnection, self._url.host, port, ssl=secure)
        except OSError as error:
            raise CannotConnect(str(error)) from error
        self._open.append(connection)
        return connection
