"""The sending of a batch's requests: to a full server, to one that fails for a moment, and to none."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from model.errors import OptionError
from service.commands.batch.lines import Request
from service.commands.batch.run import TRIES, run

Answer = Callable[[httpx.Request], httpx.Response]


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.commands.batch.run.FIRST_WAIT", 0.0)


def requests(n: int) -> Iterator[Request]:
    return (Request(number, f"id-{number}", "/v1/completions", b"{}") for number in range(n))


def send(answer: Answer, n: int = 1, n_at_once: int = 4) -> list[dict[str, Any]]:
    """The results of some requests to a server that answers so."""
    results: list[dict[str, Any]] = []
    client = httpx.AsyncClient(base_url="http://server", transport=httpx.MockTransport(answer))
    asyncio.run(run(client, requests(n), n_at_once, results.append))
    return results


def in_turn(*outcomes: int | Exception) -> Answer:
    """A server that answers with these outcomes, one after the other."""
    left = iter(outcomes)

    def answer(request: httpx.Request) -> httpx.Response:
        outcome = next(left)
        if isinstance(outcome, Exception):
            raise outcome
        return httpx.Response(outcome, json={"status": outcome}, headers={"x-request-id": "r"})

    return answer


@pytest.mark.parametrize(
    "outcomes",
    [[200], [429] * (3 * TRIES) + [200], [503] * (TRIES - 1) + [200], [httpx.ReadError("gone"), 502, 504, 429, 200]],
)
def test_a_server_that_cannot_answer_now_is_asked_again(outcomes: list[int | Exception]) -> None:
    (result,) = send(in_turn(*outcomes))
    assert result["response"] == {"status_code": 200, "request_id": "r", "body": {"status": 200}}


def test_faults_that_stay_are_the_result() -> None:
    (unavailable,) = send(in_turn(*[503] * TRIES))
    assert unavailable["response"]["status_code"] == 503
    (broken,) = send(in_turn(*[httpx.ReadError("gone")] * TRIES))
    assert broken["error"] == {
        "code": "connection_error",
        "message": f"line 0: the connection broke {TRIES} times: gone",
        "line": 0,
    }
    (odd,) = send(lambda request: httpx.Response(200, text="<html>"))
    assert (odd["response"], odd["error"]["code"]) == (None, "invalid_answer")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (in_turn(*[httpx.ConnectError("refused")] * 100), "nothing answers at http://server/?: refused"),
        (lambda request: httpx.Response(401, json={"error": {"message": "no key"}}), "the server refuses the key: no"),
    ],
)
def test_without_a_server_the_batch_stops(answer: Answer, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        send(answer, 10)


def test_so_many_are_in_flight_and_no_more_lines_are_read() -> None:
    """A file of a million lines is never in memory."""
    n_read, seen = 0, []

    def lines() -> Iterator[Request]:
        nonlocal n_read
        for request in requests(50):
            n_read += 1
            yield request

    in_flight = 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal in_flight
        in_flight += 1
        await asyncio.sleep(0)
        seen.append((in_flight, n_read - len(results)))
        in_flight -= 1
        return httpx.Response(200, json={})

    results: list[dict[str, Any]] = []
    client = httpx.AsyncClient(base_url="http://server", transport=httpx.MockTransport(answer))
    asyncio.run(run(client, lines(), 7, results.append))
    assert len(results) == 50
    assert max(flight for flight, _ in seen) == 7
    assert max(ahead for _, ahead in seen) <= 7
