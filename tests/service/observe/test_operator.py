"""What an operator asks at night: who runs and waits, why a request was refused, what a reload and a drain did."""

import json
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pytest

from service.observe import observer
from tests.service.command_line import noria
from tests.service.hosting.serving import LATE, posted, serving
from tests.service.live import LONG, USER, Live, begun, hurried, remaining, running
from tests.waiting import PATIENCE, eventually

COMPLETIONS = "/v1/completions"
KEYS: tuple[dict[str, Any], ...] = (
    {"name": "boss", "key": "b", "sees_all": True},
    {"name": "team", "key": "t"},
    {"name": "few", "key": "f", "requests_per_minute": 1},
)


def written(path: Path, *entries: dict[str, Any]) -> Path:
    path.write_text(json.dumps({"keys": entries}))
    return path


def by(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@contextmanager
def keyed(folder: Path, **options: Any) -> Iterator[Live]:
    """A slow server with `KEYS`, which a client uses with the key of a team."""
    with running(model="slow", api_key_file=written(folder / "keys.json", *KEYS), **options) as live:
        live.http.headers.update(by("t"))
        yield live


def on_the_loop(live: Live, call: Any) -> None:
    """Call a function as a signal's handler does, and wait for its end."""
    done = threading.Event()
    live.state.drain.expired.get_loop().call_soon_threadsafe(lambda: (call(), done.set()))
    assert done.wait(PATIENCE)


def listed(live: Live, **headers: str) -> list[dict[str, Any]]:
    response = live.http.get("/v1/requests", headers=headers)
    assert response.status_code == 200, response.text
    return response.json()["data"]


def test_the_right_sees_and_cancels_what_all_keys_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="noria")
    with keyed(tmp_path, max_sequences=1) as live, begun(live) as lines, ExitStack() as stack:
        body = {**LONG, "prompt": "waits and waits"}
        waiting = stack.enter_context(posted(live, COMPLETIONS, body, **{"x-request-id": "second"}))
        eventually(lambda: len(listed(live, **by("b"))) == 2, "both are listed")
        eventually(lambda: listed(live, **by("b"))[1]["reason"] is not None, "one waits")
        first, second = listed(live, **by("b"))
        assert (first["key"], first["model"], first["client"], first["state"]) == (
            "team",
            "fake",
            "127.0.0.1",
            "decode",
        )
        assert (first["prompt_tokens"], second["prompt_tokens"]) == (4, 15)
        assert first["held_tokens"] >= first["prompt_tokens"] > second["held_tokens"] == 0
        assert (second["id"], second["state"], second["reason"]) == ("second", "waiting", "sequences")
        assert first["age_seconds"] > second["age_seconds"] > 0
        refused = live.http.get("/v1/requests")
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "not_allowed")
        assert "sees_all" in refused.json()["error"]["message"]

        shown = noria("ps", "--url", live.url, "--api-key", "b")
        head, *rows = shown.stdout.splitlines()
        assert head.split() == ["ID", "KEY", "CLIENT", "MODEL", "STATE", "REASON", "SECONDS", "IN", "OUT", "HELD"]
        assert [row.split()[1:6] for row in rows] == [
            ["team", "127.0.0.1", "fake", "decode", "-"],
            ["team", "127.0.0.1", "fake", "waiting", "sequences"],
        ]
        assert rows[1].split()[0] == "second"
        told = noria("ps", "--url", live.url, "--api-key", "t")
        assert told.returncode == 1
        assert "sees_all" in told.stderr

        few = live.http.delete(f"/v1/requests/{first['id']}", headers=by("f"))
        assert few.status_code == 404
        assert live.http.delete(f"/v1/requests/{first['id']}", headers=by("b")).json()["cancelled"] == 1
        assert json.loads(remaining(lines)[-2])["choices"][0]["finish_reason"] == "abort"
        assert live.http.delete("/v1/requests/second", headers=by("b")).json()["cancelled"] == 1
        assert waiting.result(PATIENCE).json()["choices"][0]["finish_reason"] == "abort"
    (line, _) = [record.fields for record in caplog.records if record.getMessage() == "cancelled"]  # type: ignore[attr-defined]
    assert (line["id"], line["key"], line["by"]) == (first["id"], "team", "boss")


@pytest.mark.parametrize("uds", [False, True])
def test_without_keys_only_this_machine_may_list_and_no_proxy(uds: bool, tmp_path: Path) -> None:
    with running(**{"uds": tmp_path / "socket"} if uds else {}) as live:
        assert listed(live) == []
        for name in ("X-Forwarded-For", "X-Forwarded-Proto", "X-Real-IP", "Forwarded", "Via"):
            response = live.http.get("/v1/requests", headers={name: "127.0.0.1"})
            assert response.status_code == 403, name
        if not uds:
            shown = noria("ps", "--url", live.url, "--json")
            assert json.loads(shown.stdout) == []


class Other(BaseHTTPRequestHandler):
    """A server that answers every GET with 200 and what follows the first "/" of its path."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(unquote(self.path[1:].removesuffix("/v1/requests")).encode())


@pytest.mark.parametrize("body", ["<html>", "[]", "{}", '{"data": null}', '{"data": ["a"]}', '{"data": [{"id": "a"}]}'])
def test_ps_says_so_if_the_server_is_another_one(body: str) -> None:
    with HTTPServer(("127.0.0.1", 0), Other) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        shown = noria("ps", "--url", f"http://127.0.0.1:{server.server_port}/{quote(body)}")
        server.shutdown()
    assert shown.returncode == 1
    assert "is it Noria?" in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_key_that_has_ended_runs_nothing_any_more(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its engine events end, too. A client that gets an error, and the log, are told why."""
    caplog.set_level(logging.INFO, logger="noria")
    with ExitStack() as stack, keyed(tmp_path) as live, begun(live) as lines:
        boss, team, _ = KEYS
        events = stack.enter_context(live.http.stream("GET", "/v1/engine/events"))
        body = {"messages": USER, "max_tokens": 3000}
        message = stack.enter_context(posted(live, "/v1/messages", body, **{"x-request-id": "message"}))
        eventually(lambda: len(listed(live, **by("b"))) == 2, "both run")
        new = {"name": "new", "key": "n"}
        written(tmp_path / "keys.json", boss, {**team, "end": True}, new)
        on_the_loop(live, live.server.reload)
        assert json.loads(remaining(lines)[-2])["choices"][0]["finish_reason"] == "abort"
        assert message.result(PATIENCE).json()["error"]["message"].endswith("because its key has ended")
        assert list(events.iter_lines())
        assert live.post(COMPLETIONS, LONG).status_code == 401
        assert listed(live, **by("b")) == []
        on_the_loop(live, live.server.reload)
    first, second = [record.fields for record in caplog.records if record.getMessage() == "reloaded"]  # type: ignore[attr-defined]
    assert first == {"keys": "added new; removed few; changed team"}
    assert second == {"changes": "none"}
    cancelled = [record.fields for record in caplog.records if record.getMessage() == "cancelled"]  # type: ignore[attr-defined]
    assert {(line["key"], line["by"]) for line in cancelled} == {("team", "the key file")}
    assert len(cancelled) == 2


def test_the_line_of_a_refused_request_says_why(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="noria")
    body = {"prompt": "hi", "max_tokens": 1}
    with keyed(tmp_path, max_body_bytes=1000) as live:
        for more, headers in (
            ({"model": "nobody"}, {}),
            ({"temperature": 9}, {}),
            ({"prompt": "x" * 2000}, {}),
            ({}, by("f")),
            ({}, by("f")),
            ({}, by("wrong")),
        ):
            live.post(COMPLETIONS, {**body, **more}, headers=headers)
        live.http.get("/v1/nothing")
        eventually(lambda: len(lines_of_requests(caplog)) == 7, "the last one has its line")
        found = lines_of_requests(caplog)
        names = ("status", "code", "field", "limit", "unknown_model")
        assert [tuple(line[name] for name in names) for line in found] == [
            (404, "model_not_found", "model", None, "nobody"),
            (400, "invalid_request_error", "temperature", None, None),
            (413, "request_too_large", None, "--max-body", None),
            (200, None, None, None, None),
            (429, "rate_limit_exceeded", None, "requests_per_minute", None),
            (401, "invalid_api_key", None, None, None),
            (404, "not_found", None, None, None),
        ]
        for key, reason in (("team", "model_not_found"), ("few", "rate_limit_exceeded"), ("", "invalid_api_key")):
            assert live.metric("noria_refusals_total", key=key, reason=reason) == 1
        assert live.metric("noria_requests_total", model="", outcome="refused") == 4, "all but the 429"


def test_a_load_is_a_time_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It delays no first token in the metrics. A request that waits for it says so, or that it waits for memory."""
    monkeypatch.setattr(observer, "LONG_SECONDS", 0.3)
    caplog.set_level(logging.INFO, logger="noria")
    entries = {"a": {"source": "large", **LATE}, "b": LATE}
    with serving(tmp_path, entries, memory_budget=1) as live, ExitStack() as stack:
        futures = []
        for name in "ab":
            body = {"model": name, "prompt": "hi"}
            futures.append(stack.enter_context(posted(live, COMPLETIONS, body, **{"x-request-id": name})))
            eventually(lambda: live.model("a").reserved, "the first one has the memory")
        eventually(lambda: len(long_ones(caplog)) == 2, "both take long")
        listing = {item["id"]: (item["state"], item["reason"]) for item in listed(live)}
        assert listing == {"a": ("preparing", "loading"), "b": ("preparing", "memory")}
        with hurried():
            timings = [future.result(PATIENCE).json()["timings"] for future in futures]
        eventually(lambda: len(lines_of_requests(caplog)) == 2, "both have ended")
        loads = {line["id"]: line for line in lines_of_requests(caplog)}
        for name, times in zip("ab", timings, strict=True):
            assert loads[name]["load_s"] > 0.3 > loads[name]["ttft_s"]
            assert abs(times["load_ms"] - 1000 * loads[name]["load_s"]) < 1
            assert live.metric("noria_time_to_first_token_seconds_sum", model=name) < 0.3
        assert live.metric("noria_memory_budget_bytes") == 1
    waits = {line["id"]: line["waits_for"] for line in long_ones(caplog)}
    assert waits == {"a": "its model, which has been loading for 0 s", "b": "memory for its model"}


def test_lines_about_an_engine_name_its_model(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="noria")
    with running(model="slow") as live, begun(live) as lines:
        live.hosts[0].kill()
        with hurried():
            assert remaining(lines)[-1] == "[DONE]"
    for beginning in ("the engine is gone (", "another engine goes on with 1 sequence"):
        (line,) = [record for record in caplog.records if record.getMessage().startswith(beginning)]
        assert line.fields == {"model": "fake"}  # type: ignore[attr-defined]


@pytest.mark.parametrize(("seconds", "finished", "cut_off"), [(0.2, 0, 1), (60, 1, 0)])
def test_a_drain_says_how_it_ended(
    seconds: float, finished: int, cut_off: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The line of a request that it has cut off says that, too."""
    caplog.set_level(logging.INFO, logger="noria")
    with running(model="slow", drain_timeout=seconds) as live, begun(live, max_tokens=400) as lines:
        on_the_loop(live, lambda: live.server.handle_exit(signal.SIGTERM, None))
        with hurried() if finished else nullcontext():
            remaining(lines)
        eventually(lambda: not live.running(), "the server has ended")
    (ending,) = [record for record in caplog.records if record.getMessage() == "the drain has ended"]
    assert ending.levelno == (logging.WARNING if cut_off else logging.INFO)
    fields = ending.fields  # type: ignore[attr-defined]
    assert (fields["finished"], fields["cut_off"]) == (finished, cut_off)
    assert lines_of_requests(caplog)[-1]["code"] == ("shutting_down" if cut_off else None)


def test_a_drain_cuts_off_a_response_in_the_background(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="noria")
    with running(model="slow", drain_timeout=0.2) as live:
        body = {"input": "hi", "background": True, "max_output_tokens": 3000}
        assert live.post("/v1/responses", body).status_code == 200
        eventually(lambda: live.metric("noria_requests_running"), "it runs")
        on_the_loop(live, lambda: live.server.handle_exit(signal.SIGTERM, None))
        eventually(lambda: not live.running(), "the server has ended")
    assert "shutting_down" in [line["code"] for line in lines_of_requests(caplog)]


@pytest.mark.parametrize("stream", [False, True])
def test_a_drain_cuts_off_requests_that_wait_for_their_model(
    stream: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="noria")
    with serving(tmp_path, {"a": {}, "b": {"source": "large", **LATE}}) as live:
        with posted(live, COMPLETIONS, {"model": "b", "prompt": "hi", "stream": stream}) as future:
            eventually(lambda: live.model("b").waiting.total, "it waits")
            on_the_loop(live, lambda: live.server.handle_exit(signal.SIGTERM, None))
            assert future.result(PATIENCE).status_code == 503
        eventually(lambda: not live.running(), "the server has ended")
    (ending,) = [record for record in caplog.records if record.getMessage() == "the drain has ended"]
    assert ending.fields == {"finished": 0, "cut_off": 1}  # type: ignore[attr-defined]
    (line,) = lines_of_requests(caplog)
    assert (line["status"], line["outcome"], line["code"]) == (503, "refused", "shutting_down")


def long_ones(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    found = [record for record in caplog.records if "is not finished after" in record.getMessage()]
    return [record.fields for record in found]  # type: ignore[attr-defined]


def lines_of_requests(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.fields for record in caplog.records if record.name == "noria.access"]  # type: ignore[attr-defined]
