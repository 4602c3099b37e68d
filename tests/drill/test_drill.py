"""The drill sees a violated promise: wrong answers, blame, slow health, leaks. A fake server breaks each on purpose."""

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from tests.drill import report
from tests.drill.canary import COMPLETIONS, Answer, Asked, Canary, Question
from tests.drill.probe import Sample
from tests.drill.rest import Rest, unrest
from tests.drill.row import LoneRow, NotPossible, Promise, Result, Row, check, observed
from tests.drill.rows import FAMILIES
from tests.drill.soak import slope
from tests.drill.stage import canary_problems, live_problems

PLAIN = Question(COMPLETIONS, {"prompt": "a"})
STREAM = Question(COMPLETIONS, {"prompt": "a", "stream": True})
METRICS = (
    'noria_requests_running {running}\nnoria_requests_waiting 0.0\nnoria_kv_pages{{window="full",state="held"}} 0.0\n'
)


class Handler(BaseHTTPRequestHandler):
    """Answers with `status` and `text`; a stream may break off or carry an error."""

    status, text, end, running = 200, "wheel", "data: [DONE]\n\n", 0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        chunk = json.dumps({"choices": [{"index": 0, "text": self.text, "finish_reason": "stop"}]})
        self._reply(f": a comment\n\ndata: {chunk}\n\n{self.end}" if body.get("stream") else chunk)

    def do_GET(self) -> None:
        self._reply(METRICS.format(running=self.running))

    def _reply(self, text: str) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, Any]]:
    """A fake server: its address, and a function that changes what it does."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", lambda name, value: monkeypatch.setattr(Handler, name, value)
        server.shutdown()


@pytest.fixture
def canary(fake: tuple[str, Any]) -> Canary:
    """A canary that has learned the fake server's answers."""
    canary = Canary(fake[0], questions=(PLAIN, STREAM))
    canary.learn()
    return canary


ATTACK, FAULT = Promise(), Promise(serves=8.0)


@pytest.mark.parametrize(
    ("name", "value", "attack", "fault"),
    [
        ("text", "wheel", [], []),
        ("text", "whale", ["2 wrong answers"], ["2 wrong answers"]),
        ("status", 400, ["good requests got 400"], ["good requests got 400"]),
        ("status", 503, ["good requests failed (2 x 503)"], []),
        ("end", "", ["good requests failed (1 x lost)"], []),
        ("end", 'data: {"error": {}}\n\n', ["good requests failed (1 x 500)"], []),
    ],
)
def test_the_canary_sees_what_a_promise_forbids(
    canary: Canary, fake: tuple[str, Any], name: str, value: Any, attack: list[str], fault: list[str]
) -> None:
    fake[1](name, value)
    log = canary.once()
    for promise, expected in ((ATTACK, attack), (FAULT, fault)):
        found = canary_problems(log, promise)
        assert len(found) == len(expected)
        assert all(text.startswith(start) for text, start in zip(found, expected, strict=True))


def test_a_canary_goes_on_asking_until_its_block_ends(canary: Canary, fake: tuple[str, Any]) -> None:
    with canary.asking(2) as log:
        while not any(asked.right for asked in log):
            pass
        fake[1]("text", "whale")
        while not any(asked.wrong for asked in log):
            pass
    assert canary_problems(log, FAULT)


def test_a_slow_answer_breaks_an_attacks_promise() -> None:
    asked = Asked(PLAIN, Answer(200, "wheel", 0.0, 21.0), right=True)
    assert canary_problems([asked], ATTACK) == ["an answer took 21.0 s"]
    assert canary_problems([asked], FAULT) == []
    refused = Asked(PLAIN, Answer(429, "", 0.0, 0.1), right=False)
    assert canary_problems([refused], Promise(refusals=frozenset({429}))) == []


def test_slow_and_missing_health_breaks_a_promise() -> None:
    assert live_problems([Sample(0.0, 0.4, 200)], ATTACK) == (0.4, [])
    assert live_problems([Sample(0.0, 0.6, 200), Sample(1.0, 0.1, 0)], ATTACK) == (
        0.6,
        ["`/live` took 600 ms", "`/live` was not answered 1 times"],
    )
    assert live_problems([Sample(0.0, 9.0, 0)], Promise(live=None)) == (None, [])


def test_what_is_held_is_no_rest(fake: tuple[str, Any]) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        target: Any = SimpleNamespace(pid=process.pid, url=fake[0], headers={})
        now = Rest.of(target)
        assert unrest(target, now, now) == []
        fake[1]("running", 2)
        less = Rest(now.descriptors - 100, now.threads - 100, now.processes, now.memory - 2**30)
        found = ", ".join(unrest(target, less, less))
        process.kill()
    assert all(word in found for word in ("requests_running: 2", "descriptors", "threads", "memory"))


def impossible() -> str:
    raise NotPossible("no such tool")


def broken() -> str:
    check(False, "seen")
    return ""


def crashing() -> str:
    raise KeyError("gone")


def test_verdicts() -> None:
    rows = [LoneRow("fault", "promise", action) for action in (lambda: "seen", broken, crashing, impossible)]
    results = [observed(row, row.action) for row in rows]
    assert [result.verdict for result in results] == ["holds", "broken", "broken", "not possible here"]
    assert [result.summary for result in results] == ["seen", "seen", "KeyError: 'gone'", "no such tool"]
    page = report.page({"Family": results}, 60.0)
    assert "| Family | fault |" in page
    assert "| fault | promise | KeyError: 'gone' | broken |" in page
    assert "1 holds, 2 broken, 1 not possible here" in page


def test_the_slope_is_that_of_the_line() -> None:
    assert slope([5, 5, 5]) == 0
    assert slope([0, 10, 20, 30]) == pytest.approx(30)
    assert slope([0, 0, 9, 0, 0]) == pytest.approx(0)
    assert slope([7]) == 0


def test_every_row_has_a_name_of_its_own_and_states_a_promise() -> None:
    rows = [row for rows in FAMILIES.values() for row in rows]
    faults = [row.fault for row in rows]
    asides = [row for row in rows if isinstance(row, Row) and row.setup == "aside"]
    assert len(set(faults)) == len(faults)
    assert all(str(row) for row in rows)
    assert all(row.promise.own for row in asides)


def test_a_result_says_first_what_broke_the_promise() -> None:
    result = Result(LoneRow("fault", "promise", str), "seen", ["broke"], live=0.02)
    assert result.summary == "broke; seen; `/live` 20 ms"
