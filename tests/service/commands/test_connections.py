"""The load generator's connections beside servers that hang up after an answer."""

import asyncio

import pytest

from service.commands.bench.connections import Connections

ANSWER = b"HTTP/1.1 200 OK\r\n%scontent-length: 2\r\n\r\nok"


@pytest.mark.parametrize("header", [b"connection: close\r\n", b""], ids=["announced", "unannounced"])
@pytest.mark.parametrize("pause", [0, 0.05])
def test_an_answer_may_be_the_last_of_its_connection(header: bytes, pause: float) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n{}")
        writer.write(ANSWER % header)
        await writer.drain()
        await asyncio.sleep(pause)
        writer.close()

    async def ask() -> list[int]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        bodies: list[bytes] = []
        async with server, Connections(f"http://127.0.0.1:{port}", {}) as connections:
            answers = [await connections.post("/", {}, lambda _, part: bodies.append(part)) for _ in range(4)]
        assert b"".join(bodies) == b"ok" * 4
        await asyncio.sleep(2 * pause)  # until the last hangs up
        return answers

    assert asyncio.run(asyncio.wait_for(ask(), 10)) == [200] * 4
