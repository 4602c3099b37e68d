"""What the log says while the server loads and serves, at each level and in both formats, in both processes."""

import json
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from model.sampling_params import SamplingParams
from service import logs
from service.engine.messages import LoadModel
from service.engine.supervision.process import EngineProcess
from service.engine.wire import frame
from service.http import middleware
from tests.engine.driving import Drive
from tests.fakes import make_info
from tests.service.live import begun, running
from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
SECRET = "a word of the prompt"


@contextmanager
def served(model: Path, log: Path, *flags: str) -> Iterator[httpx.Client]:
    """A client of the command `noria serve`, whose stderr is a file."""
    with log.open("w") as stderr:
        command = [
            sys.executable,
            "-m",
            "service",
            "serve",
            str(model),
            "--port",
            "0",
            "--cache-memory",
            "32MiB",
            *flags,
        ]
        process = subprocess.Popen(command, cwd=ROOT, stderr=stderr)
        try:
            eventually(lambda: process.poll() is not None or '"url"' in log.read_text(), "it is ready")
            assert process.poll() is None, log.read_text()
            ready = next(line for line in map(json.loads, log.read_text().splitlines()) if "url" in line)
            with httpx.Client(base_url=ready["url"], timeout=PATIENCE) as client:
                yield client
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE)


@pytest.mark.parametrize("level", ["info", "debug"])
def test_stages_and_steps_of_both_processes_in_json(short_model: Path, tmp_path: Path, level: str) -> None:
    log = tmp_path / "log"
    with served(short_model, log, "--log-format", "json", "--log-level", level) as client:
        body = {"prompt": SECRET, "max_tokens": 2, "temperature": 0}
        answer = client.post("/v1/completions", json=body, headers={"x-request-id": "mine"}).json()
    text = answer["choices"][0]["text"]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    stages = [line["stage"] for line in lines if line["message"] == "loading"]
    assert stages == ["checking memory", "loading weights", "warming up"]
    assert SECRET not in log.read_text()
    assert not text.strip() or text not in log.read_text()
    own = [line for line in lines if line.get("process") == "engine"]
    steps = [line["message"] for line in lines if line["logger"] == "noria.request" and line["id"] == "mine"]
    if level == "info":
        assert not own
        assert not steps
        return
    assert steps == ["tokenized", "submitted", "first token"]
    words = "\n".join(line["message"] for line in own)
    for part in ("loading with", "the model is loaded", "is admitted", "a step computes", "ends: length"):
        assert part in words


def test_a_line_for_people_names_the_engine(capfd: pytest.CaptureFixture[str]) -> None:
    engine = EngineProcess("tests.fakes:create_fake", log=("human", "debug"))
    lines: list[str] = []

    def loaded() -> bool:
        lines.extend(capfd.readouterr().err.splitlines())
        return any("the model is loaded" in line for line in lines)

    with engine.spawn() as wire:
        wire.sendall(frame(LoadModel({"model": "fake", "max_sequences": None, "max_step_tokens": None}, 60.0)))
        eventually(loaded, "it loads")
    assert engine.wait() == "exit code 0"
    assert lines[0][8:].startswith(" debug   engine: loading with {")


def test_the_scheduler_says_whom_it_admits_preempts_and_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="noria.engine")
    drive = Drive(make_info(pools=((None, 7),)), max_sequences=2)
    for number in (1, 2):
        drive.submit(number, [40 + number] * 9, SamplingParams(max_tokens=12))
    drive.run()
    assert drive.scheduler.stats().preemptions
    messages = [record.getMessage() for record in caplog.records]
    assert "sequence 1 is admitted: 9 tokens, 0 of them cached" in messages
    assert any(message.startswith("sequence 2 is preempted at ") for message in messages)
    assert "sequence 2 ends: length, 21 tokens" in messages


def test_a_request_that_takes_long_gets_one_line(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others get none: the requests for /live and /metrics end before."""
    monkeypatch.setattr(middleware, "LONG_SECONDS", 1.0)
    with running(model="slow", max_sequences=1) as live:
        caplog.set_level(logging.INFO, logger="noria")
        with begun(live, user="first"), httpx.Client(base_url=live.url, timeout=PATIENCE) as http:
            body = {"prompt": "waits", "max_tokens": 2, "stream": True, "timeout": 2.5}
            with http.stream("POST", "/v1/completions", json=body, headers={"x-request-id": "second"}) as response:
                assert response.status_code == 200
                response.read()
        found = [(record.fields["id"], record.fields["waits_for"]) for record in _long(caplog)]  # type: ignore[attr-defined]
    assert len(found) == 2
    assert found[0][1] == "its last token"
    assert found[1] == ("second", "the queue or the prefill of its prompt")


def _long(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if "is not finished after" in record.getMessage()]


def test_a_level_that_changed_is_that_of_the_next_engine() -> None:
    before = logs.level()
    try:
        logs.use_level("error")
        assert logs.level() == "error"
    finally:
        logs.use_level(before)
