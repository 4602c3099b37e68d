"""Load for any OpenAI endpoint: streamed requests, closed loop or Poisson arrivals, one measured `Result` each."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import httpx

from service.tools.endpoint import error_message, event_data

Send = Callable[[dict[str, Any]], Coroutine[Any, Any, None]]


@dataclass(frozen=True, slots=True)
class Load:
    """What to send and how fast. `rate` (requests a second, Poisson) replaces the `concurrency` of a closed loop.

    Each of `bodies` is one request's JSON; `timeout` is seconds for a whole request.
    """

    path: str
    bodies: tuple[dict[str, Any], ...]
    concurrency: int
    rate: float | None
    seed: int
    timeout: float


@dataclass(frozen=True, slots=True)
class Result:
    """One request. `start` counts from the load's, `arrivals` (one per piece of text) and `seconds` from the request's.

    `counted` tells that the server reported usage; without it `completion_tokens` is the number of pieces.
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
    """An answer that is not one: `kind` groups it, the message is the server's own."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(slots=True)
class _Answer:
    """The stream of one answer, as it is read."""

    arrivals: list[float] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)

    def take(self, event: dict[str, Any], now: float) -> None:
        if "error" in event:
            raise AnswerError("stream_error", error_message(event))
        if event.get("usage"):
            self.usage = event["usage"]
        if any(_has_text(choice) for choice in event.get("choices", ())):
            self.arrivals.append(now)


def _has_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta", choice)
    return any(delta.get(name) for name in ("text", "content", "reasoning_content", "tool_calls"))


async def check(response: httpx.Response) -> None:
    """Raise AnswerError with the server's own message unless the status is 2xx."""
    if not response.is_success:
        raise AnswerError(f"http_{response.status_code}", error_message(await response.aread()))


async def events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """The JSON events of a stream up to `[DONE]`. Raises AnswerError when it ends without."""
    done = False
    async for line in response.aiter_lines():  # to the very end, so that the connection can be used again
        data = event_data(line)
        if data == "[DONE]":
            done = True
        elif data:
            yield json.loads(data)
    if not done:
        raise AnswerError("incomplete", "the stream ended without [DONE]")


async def send(client: httpx.AsyncClient, load: Load, body: dict[str, Any], begun: float) -> Result:
    """Ask once and measure; a failure is a result too."""
    start, answer = time.perf_counter(), _Answer()
    kind, detail = None, ""
    try:
        async with asyncio.timeout(load.timeout), client.stream("POST", load.path, json=body) as response:
            await check(response)
            async for event in events(response):
                answer.take(event, time.perf_counter() - start)
    except AnswerError as error:
        kind, detail = error.kind, str(error)
    except TimeoutError:
        kind, detail = "timeout", f"no complete answer within {load.timeout:g} s"
    except httpx.ConnectError as error:
        kind, detail = "connect", str(error)
    except httpx.TransportError as error:
        kind, detail = "disconnected", str(error) or type(error).__name__
    except ValueError as error:
        kind, detail = "not_json", str(error)
    usage = answer.usage
    return Result(
        start=start - begun,
        seconds=time.perf_counter() - start,
        arrivals=tuple(answer.arrivals),
        prompt_tokens=usage.get("prompt_tokens", 0),
        cached_tokens=(usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        completion_tokens=usage.get("completion_tokens", len(answer.arrivals)),
        counted="completion_tokens" in usage,
        error=kind,
        detail=detail,
    )


async def run(client: httpx.AsyncClient, load: Load, on_result: Callable[[Result], None]) -> list[Result]:
    """Send every body; results come in the order they finish, to `on_result` as they do."""
    begun, results = time.perf_counter(), list[Result]()

    async def one(body: dict[str, Any]) -> None:
        results.append(await send(client, load, body, begun))
        on_result(results[-1])

    await (_closed_loop(load, one) if load.rate is None else _open_loop(load, one, begun))
    return results


async def _closed_loop(load: Load, one: Send) -> None:
    waiting = iter(load.bodies)

    async def worker() -> None:
        for body in waiting:
            await one(body)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(load.concurrency, len(load.bodies))):
            group.create_task(worker())


async def _open_loop(load: Load, one: Send, begun: float) -> None:
    due = 0.0
    draw = random.Random(load.seed)
    async with asyncio.TaskGroup() as group:
        for body in load.bodies:
            await asyncio.sleep(begun + due - time.perf_counter())  # from the start, so that delays do not add up
            group.create_task(one(body))
            due += draw.expovariate(load.rate or 1.0)
