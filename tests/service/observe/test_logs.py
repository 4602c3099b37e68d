"""What the log says while the server loads and serves, at each level and in both formats, in both processes."""

import json
import logging
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from model.sampling_params import SamplingParams
from service import logs
from service.engine.messages import LoadModel, frame
from service.engine.supervision.process import EngineProcess
from service.engine.supervision.zygote import Zygote
from service.http.connection.exchange import SCOPE
from service.observe import observer
from tests.engine.driving import Drive
from tests.fakes import make_info
from tests.service.http.connection.raw import connected, read_all
from tests.service.live import Live, begun, running
from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[3]
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


def test_stages_and_steps_of_both_processes_in_json(short_model: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with served(short_model, log, "--log-format", "json", "--log-level", "debug") as client:
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
    assert steps == ["tokenized", "submitted", "first token"]
    words = "\n".join(line["message"] for line in own)
    for part in ("loading with", "the model is loaded", "is admitted", "a step computes", "ends: length"):
        assert part in words


def test_a_line_for_people_names_the_engine(capfd: pytest.CaptureFixture[str]) -> None:
    own = Zygote()  # it writes to the stderr of this test
    engine = EngineProcess("tests.fakes:create_fake", own, ("human", "debug"))
    lines: list[str] = []

    def loaded() -> bool:
        lines.extend(capfd.readouterr().err.splitlines())
        return any("the model is loaded" in line for line in lines)

    with engine.spawn() as wire:
        wire.sendall(frame(LoadModel({"model": "fake", "max_sequences": None, "max_step_tokens": None}, 60.0, "mine")))
        eventually(loaded, "it loads")
        title = Path(f"/proc/{engine.pid}/cmdline").read_text().rstrip("\0").split("\0")
        assert title == ["noria-engine", "mine", "-m", "service.engine"], "as ps -o args shows it"
    assert engine.wait() == "exit code 0"
    assert lines[0][8:].startswith(" debug   engine: loading with {")
    own.close()


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
    monkeypatch.setattr(observer, "LONG_SECONDS", 1.0)
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


LINE = re.compile(r"\d\d:\d\d:\d\d \w+ +(\S+) (\S+)((?: [a-z_]+=(?:\"(?:\\.|[^\"\\])*\"|[^\s\"]+))*)")
FIELD = re.compile(r" ([a-z_]+)=(\"(?:\\.|[^\"\\])*\"|[^\s\"]+)")
"""A field of a line for people: its value is a word, or a JSON string."""


def fields_of(line: str) -> dict[str, str]:
    match = LINE.fullmatch(line)
    assert match, line
    return {name: json.loads(value) if value[0] == '"' else value for name, value in FIELD.findall(match[3])}


class Kept(logging.Handler):
    """The lines of a log in both formats."""

    def __init__(self) -> None:
        super().__init__()
        self.human: list[str] = []
        self.json: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.human.append(logs.HumanFormatter().format(record))
        self.json.append(logs.JsonFormatter().format(record))


@pytest.fixture
def kept() -> Iterator[Kept]:
    """The lines of requests, which the loggers write nowhere else meanwhile."""
    log, handler = logging.getLogger("noria.access"), Kept()
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield handler
    log.removeHandler(handler)
    log.setLevel(level)


FORGED = " status=200 key=admin\x1b[2J\r\n07:41:05 info    GET / id=1 "


def test_what_clients_send_forges_no_field_and_no_line(live: Live, kept: Kept) -> None:
    """Any bytes, in the path, in fields of the head and in the body, give a line of the log with its own fields."""

    @settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.binary(max_size=40), st.binary(max_size=40), st.text(max_size=40))
    @example(FORGED.encode(), FORGED.replace("\r\n", "\x85").encode(), FORGED)
    @example("\u2028\u202e\x9b\x7f".encode(), b"1 key=admin", "\u2028\u202e\x9b\x7f")
    @example(b"", b"0\x1b[31m", "a" * 3)
    def lines(path: bytes, field: bytes, model: str) -> None:
        kept.human.clear()
        kept.json.clear()
        value = bytes(byte for byte in field if byte not in b"\0\r\n")  # others end the field
        head = b"User-Agent: %b\r\nX-Request-Id: %b\r\nX-Forwarded-For: fe80::1%%%b\r\n" % (value, value, value)
        body = json.dumps({"prompt": "a", "max_tokens": 1, "model": model, "user": model}).encode()
        start = b"POST /v1/completions%b HTTP/1.1\r\n" % (b"/" + quote(path).encode() if path else b"")
        extra = b"Host: x\r\nConnection: close\r\nContent-Type: application/json\r\n" + head
        with connected(live) as sock:
            sock.sendall(start + extra + b"Content-Length: %d\r\n\r\n" % len(body) + body)
            status = read_all(sock).split(b" ", 2)[1].decode()
        if status == "400" and not kept.human:  # no application has seen bytes that are not HTTP
            return
        (human,), (machine,) = kept.human, map(json.loads, kept.json)
        assert human.isprintable()
        found = fields_of(human)
        assert found["status"] == status == str(machine["status"])
        assert found["client"] == machine["client"]
        address = ip_address(found["client"])
        assert address == ip_address("127.0.0.1") or SCOPE.fullmatch(str(address).partition("%")[2])
        assert "key" not in found
        assert LINE.fullmatch(human)[2] == machine["message"].split(" ")[1]  # type: ignore[index]
        assert len(found["id"]) == 32 or found["id"].encode() == value.strip()

    lines()


@given(st.text(), st.one_of(st.text(), st.floats(), st.integers(), st.booleans()))
@example("", "")
@example("a\nb", 'c" status=200\ud800\\')
def test_any_value_of_a_field_is_read_back(message: str, value: object) -> None:
    record = logging.LogRecord("noria", logging.INFO, "", 0, "%s", (f"GET {message.replace(' ', '_')}",), None)
    record.fields = {"one": value, "two": 2}
    line = logs.HumanFormatter().format(record)
    assert line.isprintable()
    name = f"{value:.3f}" if isinstance(value, float) else str(value)
    assert fields_of("07:41:05 info GET /" + line[line.index(" one=") :]) == {"one": name, "two": "2"}
    assert json.loads(logs.JsonFormatter().format(record))["two"] == 2


def test_an_exception_in_the_log_has_no_control_characters() -> None:
    try:
        raise ValueError("what a client\x1b[2J sent\u2028")
    except ValueError:
        record = logging.LogRecord("noria", logging.ERROR, "", 0, "internal error", (), sys.exc_info())
    lines = logs.HumanFormatter().format(record).split("\n")
    assert lines[-1] == "ValueError: what a client\\x1b[2J sent\\u2028"
    assert all(line.isprintable() for line in lines)


def _long(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [record for record in caplog.records if "is not finished after" in record.getMessage()]
