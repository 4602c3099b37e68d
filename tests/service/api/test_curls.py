"""The requests to copy in docs/api.md, sent to a server with a fake model."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from service.app import ROUTES
from tests.service.live import Live, hurried, running

API = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
CURL = re.compile(r"^    (curl .*(?:\n      .*)*)$", re.MULTILINE)
HOST = "http://127.0.0.1:8000"


class Curl(NamedTuple):
    """A command as a shell reads it."""

    method: str
    path: str
    headers: dict[str, str]
    body: str | None


def parsed(command: str) -> Curl:
    """Raises ValueError for an option that no command here needs."""
    words = iter(shlex.split(command.replace("\\\n", " ").removesuffix(" &"))[1:])
    method, path, headers, body = "", "", {}, None
    for word in words:
        match word:
            case "-N":
                pass
            case "-X":
                method = next(words)
            case "-H":
                name, _, value = next(words).partition(": ")
                headers[name] = value
            case "-d":
                body = next(words)
            case _ if word.startswith(HOST):
                path = word.removeprefix(HOST)
            case _:
                raise ValueError(f"{word} in {command}")
    return Curl(method or ("GET" if body is None else "POST"), path, headers, body)


CURLS = [parsed(found) for found in CURL.findall(API)]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    models = tmp_path_factory.mktemp("models") / "models.toml"
    models.write_text('[[models]]\nname = "smollm2-135m-instruct"\nsource = "slow"\n')
    with running(models=models) as started:
        yield started


def sent(http: httpx.Client, curl: Curl) -> tuple[int, str]:
    """The status, and the answer, of which a stream's first event is enough."""
    options: dict[str, Any] = {"headers": curl.headers, "content": curl.body}
    with http.stream(curl.method, curl.path, **options) as response:
        if response.headers["content-type"].startswith("text/event-stream"):
            return response.status_code, next(line for line in response.iter_lines() if line.startswith("data: "))
        return response.status_code, response.read().decode()


def test_every_endpoint_for_clients_has_one() -> None:
    without = {"/v1/load_lora_adapter", "/v1/unload_lora_adapter"}  # docs/lora.md
    without |= {"/v1/audio/transcriptions", "/v1/audio/translations"}  # docs/audio.md
    posted = {route.path for route in ROUTES if route.body is not None and "{" not in route.path}
    assert posted - without == {curl.path for curl in CURLS if curl.method == "POST"}


@pytest.mark.parametrize("curl", CURLS, ids=lambda curl: f"{curl.method} {curl.path}")
def test_a_request_to_copy_is_answered(live: Live, curl: Curl) -> None:
    if "/requests/" in curl.path:  # job-17 is a request of the command before
        begun = next(other for other in CURLS if other.headers.get("X-Request-Id") == curl.path.rpartition("/")[2])
        with httpx.Client(base_url=live.url, timeout=60) as http:
            stream = http.stream(begun.method, begun.path, headers=begun.headers, content=begun.body)
            with stream as response:
                lines = response.iter_lines()  # the connection closes when this is destroyed
                next(lines)
                status, text = sent(live.http, curl)
    else:
        with hurried():
            status, text = sent(live.http, curl)
    refused = "image" if "image_url" in (curl.body or "") else "vocabulary" if curl.path == "/detokenize" else ""
    assert status == (400 if refused else 200), text  # the fake model sees nothing, and has 256 tokens
    assert refused in text
