"""The load on an OpenAI endpoint: streamed requests, in a closed loop or with Poisson arrivals, and their results."""

import asyncio
import math
import random
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import orjson

from service.commands.bench.connections import CannotConnect, Connections
from service.commands.endpoint import error_message

Send = Callable[[dict[str, Any]], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests and their pace. A `rate` (requests per second, Poisson) replaces `concurrency` (closed loop).

    Each of `bodies` is the JSON of one request. `timeout` is in seconds, for a whole request. No request is sent later
    than `seconds` after the start.
    """

    path: str
    bodies: Iterable[dict[str, Any]]
    concurrency: int
    rate: float | None
    seed: int
    timeout: float
    seconds: float = math.inf


@dataclass(frozen=True, slots=True)
class Result:
    """The measurements of one request, in seconds.

    `start` is the time since the start of the load. `arrivals` (one per piece of text) and `seconds` (the whole
    request) are times since the start of the request. `counted`: the server reported usage. Without usage
    `completion_tokens` is the number of pieces.
    """

    start: float
    seconds: float
    arrivals: tuple[float, ...] = ()
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    counted: bool = False
    error: str | None = None
    detail: str = ""


class AnswerError(Exception):
    """An error in place of an answer: `kind` groups such errors, the message comes from the server."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


class _Answer:
    """The stream of one answer while it is read."""

    def __init__(self) -> None:
        self.start = time.perf_counter()
        self.arrivals: list[float] = []
        self.usage: dict[str, Any] = {}
        self.complete = False
        self._unread = b""  # a line without its end; for an error, the whole body

    def feed(self, status: int, data: bytes) -> None:
        """Read a part of the body. Raises AnswerError for an error event, ValueError for data that is not JSON."""
        self._unread += data
        if status == 200:
            *lines, self._unread = self._unread.split(b"\n")
            now = time.perf_counter() - self.start
            for line in lines:
                if line.startswith(b"data:"):
                    self._take(line[5:].strip(), now)

    def check(self, status: int) -> None:
        """Raise AnswerError, with the server's message if there is one, unless the answer is complete."""
        if status != 200:
            raise AnswerError(f"http_{status}", error_message(self._unread))
        if not self.complete:
            raise AnswerError("incomplete", "the stream ended without [DONE]")

    def _take(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self.complete = True
            return
        event = orjson.loads(data)
        if "error" in event:
            raise AnswerError("stream_error", error_message(event))
        if event.get("usage"):
            self.usage = event["usage"]
        if any(_has_text(choice) for choice in event.get("choices", ())):
            self.arrivals.append(now)


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta", choice)
    return any(delta.get(name) for name in ("text", "content", "reasoning_content", "tool_calls"))


async def send(connections: Connections, workload: Workload, body: dict[str, Any], begun: float) -> Result:
    """Send one request and measure it; a failure is a result too."""
    answer = _Answer()
    kind, detail = None, ""
    try:
        async with asyncio.timeout(workload.timeout):
            answer.check(await connections.post(workload.path, body, answer.feed))
    except AnswerError as error:
        kind, detail = error.kind, str(error)
    except TimeoutError:
        kind, detail = "timeout", f"no complete answer within {workload.timeout:g} s"
    except CannotConnect as error:
        kind, detail = "connect", str(error)
    except OSError as error:
        kind, detail = "disconnected", str(error) or type(error).__name__
    except ValueError as error:
        kind, detail = "not_json", str(error)
    usage = answer.usage
    return Result(
        start=answer.start - begun,
        seconds=time.perf_counter() - answer.start,
        arrivals=tuple(answer.arrivals),
        prompt_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        completion_tokens=usage.get("completion_tokens", len(answer.arrivals)),
        counted="completion_tokens" in usage,
        error=kind,
        detail=detail,
    )


async def run(connections: Connections, workload: Workload, on_result: Callable[[Result], None]) -> list[Result]:
    """Send all requests. Results are in the order in which requests finish; `on_result` gets each one at once."""
    begun, results = time.perf_counter(), list[Result]()

    async def one(body: dict[str, Any]) -> None:
        results.append(await send(connections, workload, body, begun))
        on_result(results[-1])

    await (_open_loop if workload.rate else _closed_loop)(workload, one, begun)
    return results


async def _closed_loop(workload: Workload, one: Send, begun: float) -> None:
    end = begun + workload.seconds
    waiting = takewhile(lambda _: time.perf_counter() < end, workload.bodies)

    async def worker() -> None:
        for body in waiting:
            await one(body)

    async with asyncio.TaskGroup() as group:
        for _ in range(workload.concurrency):
            group.create_task(worker())


async def _open_loop(workload: Workload, one: Send, begun: float) -> None:
    due = 0.0
    draw = random.Random(workload.seed)
    async with asyncio.TaskGroup() as group:
        for body in workload.bodies:
            if due > workload.seconds:
                break
            await asyncio.sleep(begun + due - time.perf_counter())  # relative to the start: delays do not add up
            group.create_task(one(body))
            due += draw.expovariate(workload.rate or 1.0)
