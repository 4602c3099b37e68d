"""The requests of a batch, sent to a server: so many at a time, in the order of the file, each until it is answered."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import orjson

from model.errors import OptionError
from service.commands.batch.lines import Line, Refusal, Request
from service.commands.batch.results import answered, failed, refused
from service.commands.endpoint import error_message

BUSY = 429
"""The status of a full server: the request is sent again until there is a place."""
UNAVAILABLE = (502, 503, 504)
"""The statuses of a server, or of a proxy before it, while it cannot serve."""
DENIED = (401, 403)
TRIES = 6
FIRST_WAIT, LONGEST_WAIT = 0.5, 10.0
JSON = {"content-type": "application/json"}

Write = Callable[[dict[str, Any]], None]


async def run(client: httpx.AsyncClient, lines: Iterator[Line], n_at_once: int, write: Write) -> None:
    """Answer all lines with `client`, which is closed then, and write each result as it comes.

    Only the `n_at_once` lines in flight are in memory. Raises OptionError if nothing listens at the address, or if the
    server refuses the key.
    """

    async def worker() -> None:
        for line in lines:
            write(refused(line) if isinstance(line, Refusal) else await result_of(client, line))

    try:
        async with client, asyncio.TaskGroup() as group:
            for _ in range(n_at_once):
                group.create_task(worker())
    except ExceptionGroup as error:
        raise error.exceptions[0] from None


async def result_of(client: httpx.AsyncClient, request: Request) -> dict[str, Any]:
    """Return the result of one request. It is sent again while the server is full, and some times after other faults.

    Raises OptionError as `run` does.
    """
    n_faults = 0
    for wait in _waits():
        try:
            response = await client.post(request.url, content=request.body, headers=JSON)
        except httpx.RequestError as error:
            n_faults += 1
            if n_faults == TRIES:
                return _lost(client, request, error)
        else:
            n_faults += response.status_code in UNAVAILABLE
            if response.status_code not in (BUSY, *UNAVAILABLE) or n_faults == TRIES:
                return _answer(request, response)
        await asyncio.sleep(wait)
    raise AssertionError("the waits have no end")


def _waits() -> Iterator[float]:
    wait = FIRST_WAIT
    while True:
        yield wait
        wait = min(2 * wait, LONGEST_WAIT)


def _lost(client: httpx.AsyncClient, request: Request, error: httpx.RequestError) -> dict[str, Any]:
    fault = str(error) or type(error).__name__
    if isinstance(error, httpx.ConnectError):
        raise OptionError(f"nothing answers at {client.base_url}: {fault}") from error
    return failed(request, "connection_error", f"line {request.line}: the connection broke {TRIES} times: {fault}")


def _answer(request: Request, response: httpx.Response) -> dict[str, Any]:
    if response.status_code in DENIED:
        raise OptionError(f"the server refuses the key: {error_message(response.content)}")
    try:
        body = orjson.loads(response.content)
    except ValueError:
        return failed(request, "invalid_answer", f"line {request.line}: {error_message(response.content)}")
    return answered(request, response.status_code, response.headers.get("x-request-id"), body)
