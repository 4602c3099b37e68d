"""The curl program against a live server: bytes, headers and exit codes."""

import json
import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from asking import BASE, COUNT, MODEL, SERVER, Aborted, user

CHAT = f"{BASE}/chat/completions"
PATIENCE = 60.0
ASK = {"model": MODEL, "messages": [user(COUNT)], "max_tokens": 12, "temperature": 0}
OPERATION_TIMED_OUT, HTTP_ERROR = 28, 22


def curl(*arguments: str, code: int = 0) -> str:
    program = shutil.which("curl")
    assert program, "the program curl is missing; install it (Debian and Ubuntu: apt install curl)"
    done = subprocess.run([program, "--silent", "--show-error", *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == code, done.stderr
    return done.stdout


def data(**more: Any) -> list[str]:
    return ["--header", "Content-Type: application/json", "--data", json.dumps({**ASK, **more})]


def answered(*arguments: str) -> dict[str, Any]:
    return json.loads(curl(*arguments))


def test_the_readmes_command() -> None:
    readme = Path(__file__).parents[3] / "README.md"
    found = re.search(
        r"^    curl (http://\S+/v1/\S+) -H '(.*?)' -d \\\n      '(.*)'$", readme.read_text(), re.MULTILINE
    )
    assert found
    url, header, body = found.groups()
    answer = answered(url.replace("http://127.0.0.1:8000", SERVER), "-H", header, "-d", body)
    assert answer["choices"][0]["message"]["content"] == "The capital of Japan is Tokyo."


def test_a_stream_has_the_frames_of_the_protocol() -> None:
    whole = answered(CHAT, *data())["choices"][0]["message"]["content"]
    head, _, body = curl("--no-buffer", "--include", CHAT, *data(stream=True)).partition("\n\n")
    assert head.startswith("HTTP/1.1 200")
    assert "content-type: text/event-stream" in head
    assert "x-accel-buffering: no" in head
    *frames, done, rest = body.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    chunks = [json.loads(frame.removeprefix("data: ")) for frame in frames]
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == whole


@pytest.mark.parametrize("flags", [["--http1.0"], ["--http2"], ["--compressed"], ["-H", "Expect: 100-continue"]])
def test_its_ways_to_speak_http(flags: list[str]) -> None:
    assert answered(CHAT, *flags, *data())["usage"]["completion_tokens"] == 12


def test_large_and_chunked_bodies(tmp_path: Path) -> None:
    """curl announces a megabyte with Expect, then sends it without a length. The text is too long for the model."""
    body = tmp_path / "body.json"
    body.write_text(json.dumps({**ASK, "messages": [user("one " * 300_000)]}))
    for flags in ([], ["-H", "Transfer-Encoding: chunked"]):
        answer = curl(CHAT, "--json", f"@{body}", *flags, "--write-out", "%{http_code}")
        assert "context" in answer
        assert answer.endswith("400")


def test_errors_are_json_with_their_status() -> None:
    for arguments, status, code in (
        ([CHAT, *data(temperature=9)], 400, None),
        ([CHAT, *data(model="gpt")], 404, "model_not_found"),
        ([CHAT, "--json", "{"], 400, "invalid_json"),
        ([f"{BASE}/nothing"], 404, "not_found"),
        ([CHAT], 405, "method_not_allowed"),
    ):
        text, _, found = curl(*arguments, "--write-out", "\n%{http_code}").rpartition("\n")
        assert int(found) == status
        assert json.loads(text)["error"]["code"] == code
    assert "temperature" in curl("--fail-with-body", CHAT, *data(temperature=9), code=HTTP_ERROR)


def test_the_other_endpoints() -> None:
    assert answered(f"{BASE}/models")["data"][0]["id"] == MODEL
    ids = answered(f"{SERVER}/tokenize", "--json", '{"prompt": "One, two"}')["tokens"]
    assert answered(f"{SERVER}/detokenize", "--json", json.dumps({"tokens": ids}))["prompt"] == "One, two"
    message = answered(f"{BASE}/messages", "-H", "anthropic-version: 2023-06-01", *data())
    assert message["type"] == "message"
    assert curl(f"{SERVER}/live", "--output", os.devnull, "--write-out", "%{http_code}") == "200"


def test_one_that_gives_up_leaves_nothing_behind(is_aborted: Aborted) -> None:
    body = data(stream=True, max_tokens=1900, ignore_eos=True)
    with is_aborted():
        text = curl("--no-buffer", "--max-time", "1", CHAT, *body, code=OPERATION_TIMED_OUT)
    assert text.count("data: ") > 1
    deadline = time.monotonic() + PATIENCE
    while f'noria_requests_running{{model="{MODEL}"}} 0.0' not in curl(f"{SERVER}/metrics"):
        assert time.monotonic() < deadline, "the request still runs"
