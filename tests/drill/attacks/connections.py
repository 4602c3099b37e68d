"""Connections: floods, clients that vanish, and on the server "aside" those that only a deadline ends."""

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial

from tests.drill.probe import ask_live
from tests.drill.row import LIVE_SECONDS, Promise, Row, check
from tests.drill.stage import Stage
from tests.drill.wire import ATTACKER, connect, listen, request

LIVE = b"GET /live HTTP/1.1\r\nhost: localhost\r\n\r\n"
STREAM = {"prompt": "Tell me", "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}
LATE = 6.0
"""Seconds after a deadline in which the server must have acted."""


@contextmanager
def held(port: int, n: int, first: bytes = b"", source: str = ATTACKER) -> Iterator[list[socket.socket]]:
    """Up to `n` connections that have sent `first`; the server may refuse some."""
    with contextlib.ExitStack() as stack:
        socks: list[socket.socket] = []
        for _ in range(n):
            with contextlib.suppress(OSError):
                sock = stack.enter_context(connect(port, source=source))
                sock.sendall(first)
                socks.append(sock)
        yield socks


def flood(n: int, first: bytes, stage: Stage) -> str:
    """Hold connections, and ask for health meanwhile."""
    with held(stage.target.port, n, first):
        time.sleep(1.0)
        return health(stage)


def health(stage: Stage) -> str:
    """Ask both ports for health, from another address than the attacker's."""
    own, other = ([ask_live(port) for _ in range(10)] for port in (stage.target.port, stage.target.health_port))
    check(all(sample.status == 200 for sample in own), "`/live` was not answered")
    check(stage.target.ready(), "`/ready` was not answered with 200")
    check(all(sample.status == 200 for sample in other), "the health port did not answer")
    slowest = max(sample.seconds for sample in own + other)
    check(slowest <= LIVE_SECONDS, f"health took {1000 * slowest:.0f} ms")
    return f"health took at most {1000 * slowest:.0f} ms"


def flood_everywhere(stage: Stage) -> str:
    """Hold connections from many addresses: the cap on all of them keeps some for health."""
    with contextlib.ExitStack() as stack:
        for number in range(2, 22):
            stack.enter_context(held(stage.target.port, 150, source=f"127.0.1.{number}"))
        return health(stage)


def vanish(port: int, phase: tuple[bytes, bytes]) -> None:
    """Send some bytes, wait until others have come back, and go away with a reset."""
    data, wait_for = phase
    with contextlib.suppress(OSError), connect(port) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        sock.sendall(data)
        while wait_for and wait_for not in (part := sock.recv(4096)) and part:
            pass


def disconnects(stage: Stage) -> str:
    """1,000 clients vanish: 167 in each phase of a request."""
    whole = request(json.dumps(STREAM).encode())
    plain = request(json.dumps(STREAM | {"stream": False}).encode())
    large = request(json.dumps(STREAM | {"prompt": "wheel " * 20_000}).encode())
    half = [b"", whole[:60], whole[:-20], plain, large]
    phases: list[tuple[bytes, bytes]] = [(data, b"") for data in half] + [(whole, b"data: ")]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(partial(vanish, stage.target.port), phases * 167))
    return f"{167 * len(phases)} clients vanished"


def closes(seconds: float, begin: Callable[[socket.socket], None], drip: bytes, least: float, stage: Stage) -> str:
    """Begin something on a connection, then send `drip` now and then: the server closes after `seconds`."""
    begun = time.monotonic()
    with connect(stage.target.port) as sock:
        begin(sock)
        reply = listen(sock, 0.5)
        while not reply.closed and time.monotonic() < begun + seconds + LATE:
            with contextlib.suppress(OSError):
                sock.sendall(drip)
            reply = listen(sock, 1.0)
        took = time.monotonic() - begun
    check(reply.closed, f"still open after {took:.0f} s")
    check(took >= least, f"closed after {took:.0f} s already")
    return f"closed after {took:.0f} s"


def half_heads(n: int, seconds: float, stage: Stage) -> str:
    """Many half-sent heads at once: all are closed after the deadline."""
    with held(stage.target.port, n, LIVE[:-4]) as socks:
        time.sleep(seconds + LATE)
        left = sum(not listen(sock, 0.5).closed for sock in socks)
        check(left == 0, f"{left} of {len(socks)} are still open")
    return f"all {len(socks)} are closed"


def unread(seconds: float, stage: Stage) -> str:
    """Ask for long streams and read nothing: the sequences end, so that they hold no place in the engine."""
    body = STREAM | {"n": 8, "max_tokens": 3000, "logprobs": 5}
    with connect(stage.target.port) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(request(json.dumps(body).encode()))
        begun = time.monotonic()
        time.sleep(5.0)
        check(stage.target.metric("noria_requests_running") >= 1, "the stream has ended before it was read")
        while (running := stage.target.metric("noria_requests_running")) and time.monotonic() < begun + seconds + 30:
            time.sleep(0.5)
        took = time.monotonic() - begun
    check(not running, f"{running:g} sequences still run after {took:.0f} s")
    return f"its sequences ended after {took:.0f} s"


def send(data: bytes) -> Callable[[socket.socket], None]:
    return lambda sock: sock.sendall(data)


def closing(fault: str, seconds: float, data: bytes, drip: bytes = b"", least: float = 0.0) -> Row:
    return Row(
        fault, Promise(f"closed after {seconds:g} s"), partial(closes, seconds, send(data), drip, least), "aside"
    )


BODY_HEAD = request(b"x" * 10_000)[:-10_000]
FLOODS = Promise(f"`/live` and the health port answer within {1000 * LIVE_SECONDS:g} ms")
ROWS = (
    Row("2,000 connections from one address", FLOODS, partial(flood, 2000, b"")),
    Row("1,500 half-sent heads from one address", FLOODS, partial(flood, 1500, LIVE[:-4])),
    Row("500 half-sent bodies from one address", FLOODS, partial(flood, 500, BODY_HEAD)),
    Row("3,000 connections from 20 addresses", FLOODS, flood_everywhere),
    Row("1,000 disconnects in every phase of a request", Promise(), disconnects),
    closing("a half-sent head", 10.0, LIVE[:-4]),
    closing("a head that drips", 10.0, LIVE[:-4], b"a"),
    Row("1,500 half-sent heads", Promise("all closed after 10 s"), partial(half_heads, 1500, 10.0), "aside"),
    closing("a half-sent body", 30.0, BODY_HEAD + b"x", least=25.0),
    closing("a body of 10 kB that drips", 35.0, BODY_HEAD, b"x"),
    closing("an idle connection", 75.0, LIVE, least=60.0),
    closing("a connection that sends nothing", 10.0, b""),
    Row("streams that nobody reads", Promise("their sequences end within 90 s"), partial(unread, 60.0), "aside"),
)
