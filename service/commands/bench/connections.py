"""HTTP/1.1 for a load generator, which must not take the cores that it measures: parsed in C, no task a piece."""

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
    """Nobody takes the connection."""


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.status = 0
        self._transport: asyncio.WriteTransport | None = None
        self._ended: asyncio.Future[int] | None = None

    @property
    def is_free(self) -> bool:
        """Whether it may be asked now."""
        closing = self._transport is None or self._transport.is_closing()
        return not closing and (self._ended is None or self._ended.done())

    async def ask(self, request: bytes, on_body: OnBody) -> int:
        """Send a request; its status, once the answer has ended. Raises ConnectionError and what `on_body` raises."""
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
        if self.status and error is None:  # the end of the connection may be that of the answer
            self._end(self.status)
        else:
            self._end(error or ConnectionResetError("the server hung up"))

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:  # a callback's error is its context
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
    """Connections to one server, as many as there are requests at a time. Use as a context, which closes them."""

    def __init__(self, url: str, headers: dict[str, str]) -> None:
        self._url = httpx.URL(url)
        self._open: list[Connection] = []
        self._head = f"host: {self._url.netloc.decode()}\r\ncontent-type: application/json\r\n" + "".join(
            f"{name}: {value}\r\n" for name, value in headers.items()
        )

    async def post(self, path: str, body: dict[str, Any], on_body: OnBody) -> int:
        """The status, once the answer has ended. Raises CannotConnect, OSError and what `on_body` raises."""
        content = orjson.dumps(body)
        target = self._url.path.rstrip("/") + path
        head = f"POST {target} HTTP/1.1\r\n{self._head}content-length: {len(content)}\r\n\r\n"
        request = head.encode() + content
        if (idle := self._idle()) is not None:
            try:
                return await self._ask(idle, request, on_body)
            except ConnectionError:
                if idle.status:
                    raise
                # The server hung up just as it was asked, as it may after any answer: ask again.
        return await self._ask(await self._connect(), request, on_body)

    async def _ask(self, connection: Connection, request: bytes, on_body: OnBody) -> int:
        try:
            return await connection.ask(request, on_body)
        except BaseException:
            connection.close()
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        for connection in self._open:
            connection.close()
            await connection.lost

    def _idle(self) -> Connection | None:
        self._open = [connection for connection in self._open if not connection.lost.done()]
        return next((connection for connection in self._open if connection.is_free), None)

    async def _connect(self) -> Connection:
        secure = ssl.create_default_context() if self._url.scheme == "https" else None
        port = self._url.port or (443 if secure else 80)
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(Connection, self._url.host, port, ssl=secure)
        except OSError as error:
            raise CannotConnect(str(error)) from error
        self._open.append(connection)
        return connection
