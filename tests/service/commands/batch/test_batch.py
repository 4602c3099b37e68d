"""`noria batch` against a server whose answers are known: alone, stopped, killed and resumed."""

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.service.command_line import noria
from tests.service.live import Live, answer, running
from tests.waiting import PATIENCE, eventually, strike

COMMAND = [sys.executable, "-m", "service", "batch"]


def line(custom_id: str, prompt: str, **fields: Any) -> dict[str, Any]:
    body = {"prompt": prompt, "max_tokens": 4, **fields}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions", "body": body}


def write(path: Path, lines: list[Any]) -> Path:
    path.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    return path


def start(*arguments: str | Path, **options: Any) -> subprocess.Popen[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NORIA_")}
    command = [*COMMAND, *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, **options)


def batch(*arguments: str | Path) -> tuple[int, str]:
    """The exit code of a run in this process, and what it said."""
    done = noria("batch", *arguments)
    return done.returncode, done.stderr


def results(path: Path) -> list[dict[str, Any]]:
    return [json.loads(one) for one in path.read_text().splitlines()]


def test_each_endpoint_answers_and_bad_lines_do_not_stop_the_others(live: Live, tmp_path: Path) -> None:
    user = [{"role": "user", "content": "hi"}]
    others = {
        "/v1/chat/completions": {"messages": user, "max_tokens": 4},
        "/v1/messages": {"messages": user, "max_tokens": 4, "model": "fake"},
        "/v1/responses": {"input": "hi", "max_output_tokens": 4},
        "/v1/embeddings": {"input": "hi"},
        "/v1/fim/completions": {"prompt": "hi", "max_tokens": 4},
    }
    lines: list[Any] = [
        line("plain", "wheel"),
        line("wrong", "wheel", temperature=9),
        line("streams", "x", stream=True),
    ]
    lines += [{"custom_id": url, "method": "POST", "url": url, "body": body} for url, body in others.items()]
    source, out = write(tmp_path / "in.jsonl", [*lines, 7]), tmp_path / "out.jsonl"
    code, said = batch(source, out, "--url", live.url)
    assert code == 1
    assert said.startswith("batch: 9 of 9 lines (100%), 3 failed, ")
    found = {result["custom_id"]: result for result in results(out)}
    assert found["plain"]["response"]["body"]["choices"][0]["text"] == answer("wheel", 4)
    assert found["plain"]["response"]["request_id"]
    assert found["plain"]["error"] is None
    assert [found[url]["response"]["status_code"] for url in others] == [200] * 5
    wrong = found["wrong"]["response"]
    assert (wrong["status_code"], wrong["body"]["error"]["param"]) == (400, "temperature")
    assert found["streams"]["error"]["message"] == "line 3: body.stream must be false in a batch, got true"
    assert found[None]["error"]["line"] == 9


def test_a_killed_batch_goes_on_where_it_was(tmp_path: Path) -> None:
    """No line is answered twice, and what the kill tore is made good."""
    source = write(tmp_path / "in.jsonl", [line(f"id-{n}", f"prompt {n}", max_tokens=40) for n in range(60)])
    out = tmp_path / "out.jsonl"
    with running(model="slow") as live:
        with start(source, out, "--url", live.url, "--concurrency", "3") as process:
            eventually(lambda: out.exists() and out.read_bytes().count(b"\n") >= 4, "some lines are done")
            strike(process.pid, signal.SIGKILL)
        before = results(out)
        assert 4 <= len(before) < 60
        with out.open("a") as file:
            file.write('{"id": "batch_req_1", "custom_id": "id-59", "resp')
        eventually(lambda: live.metric("noria_requests_running") == 0, "the requests of the killed batch end")
        n_before = live.metric("noria_requests_total", outcome="length")
        code, said = batch(source, out, "--url", live.url)
        n_after = live.metric("noria_requests_total", outcome="length")
    assert code == 0
    assert said.startswith("batch: 60 of 60 lines (100%), ")
    assert n_after - n_before == 60 - len(before)
    assert results(out)[: len(before)] == before
    texts = {result["custom_id"]: result["response"]["body"]["choices"][0]["text"] for result in results(out)}
    assert texts == {f"id-{n}": answer(f"prompt {n}", 40) for n in range(60)}
    assert len(results(out)) == 60


def test_ctrl_c_stops_the_requests_and_says_how_to_go_on(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [line("short", "hi"), line("long", "long", max_tokens=3000)])
    out = tmp_path / "out.jsonl"
    with running(model="slow") as live:
        with start(source, out, "--url", live.url) as process:
            eventually(lambda: out.exists() and out.read_bytes().count(b"\n") == 1, "one line is done")
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=PATIENCE)
        said = said.splitlines()[-1]
        assert (process.returncode, said) == (130, "stopped: 1 of 2 lines (50%). The same command goes on.")
        eventually(lambda: live.metric("noria_requests_running") == 0, "the server stops too")
    assert [result["custom_id"] for result in results(out)] == ["short"]


def test_a_finished_batch_needs_no_server_and_its_failures_can_be_tried_again(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [line("a", "hi"), line("b", "hi", max_tokens=500)])
    out = tmp_path / "out.jsonl"
    with running(max_model_len=100) as live:
        code, said = batch(source, out, "--url", live.url)
    first = results(out)
    (message,) = (one["response"]["body"]["error"]["message"] for one in first if one["custom_id"] == "b")
    assert (code, said.partition("; ")[2]) == (1, f"results in {out}; first failure: b {message}\n")
    again = f"batch: 2 of 2 lines (100%), 1 failed; results in {out}\n"
    assert batch(source, out, "--url", "http://127.0.0.1:9") == (1, again)
    assert results(out) == first
    with running(max_model_len=600) as live:
        code, said = batch(source, out, "--url", live.url, "--retry-failed")
    assert (code, said[:38]) == (0, "batch: 2 of 2 lines (100%), 500 tokens")
    assert Counter(result["custom_id"] for result in results(out)) == {"a": 1, "b": 1}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--api-key", "wrong"], "the server refuses the key: "),
        (["--model", "x"], "--model and --url exclude each other"),
    ],
)
def test_what_no_line_survives_is_one_line(flags: list[str], message: str, tmp_path: Path) -> None:
    source, out = write(tmp_path / "in.jsonl", [line("a", "hi"), line("b", "hi")]), tmp_path / "out.jsonl"
    with running(api_keys=("right",)) as live:
        live.http.headers["authorization"] = "Bearer right"
        code, said = batch(source, out, "--url", live.url, *flags)
    assert code == 1
    assert said.startswith(f"noria: {message}")
    assert said.count("\n") == 1
    assert not out.exists() or not out.read_text()


def test_requests_and_results_are_two_files(tmp_path: Path) -> None:
    source = write(tmp_path / "in.jsonl", [line("a", "hi")])
    code, said = batch(source, source)
    assert code == 1
    assert said == f"noria: {source} is the file of the requests; name another file for the results\n"


def test_results_of_other_lines_stay_and_do_not_count(live: Live, tmp_path: Path) -> None:
    """A file of results may be used with another file of requests: no line is taken for one that is done."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    assert batch(write(source, [line("a", "x"), line("b", "x", max_tokens=9000)]), out, "--url", live.url)[0] == 1
    code, said = batch(write(source, [line("c", "x"), line("d", "x")]), out, "--url", live.url)
    assert code == 0
    assert "2 of 2 lines (100%)" in said
    assert {one["custom_id"] for one in results(out)} == {"a", "b", "c", "d"}
    write(source, [line("a", "x")])
    assert batch(source, out, "--url", "http://127.0.0.1:9") == (0, f"batch: 1 of 1 lines (100%); results in {out}\n")
