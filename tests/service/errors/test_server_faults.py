"""The law: no fault of the server is ever a 4xx. Errors that no client causes, in every dialect and at every limit."""

import errno
import json
import threading
from typing import Any

import pytest

from model.errors import ModelError, OptionError
from service.engine.mailbox import EngineDied, EngineUnavailable
from service.errors.errors import as_api_error
from tests.faults import FAULTS, failing
from tests.service.live import USER, Live, running

RESOURCES = [
    *(OSError(code, "no more") for code in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.ENOSPC)),
    MemoryError(),
]
"""What Python raises where the system has no more of something."""
OTHERS = [
    *(kind("/a/path/of/ours") for kind in (ValueError, TypeError, KeyError, IndexError, RuntimeError, AssertionError)),
    *(kind("/a/path/of/ours") for kind in (ModelError, OptionError, FileNotFoundError, PermissionError, EOFError)),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid"),
    RecursionError(),
    TimeoutError(),
    ConnectionResetError(),
    EngineDied(),
    EngineUnavailable(),
]


@pytest.mark.parametrize("error", [*RESOURCES, *OTHERS], ids=repr)
def test_an_error_that_no_client_caused_is_a_5xx_without_details(error: Exception) -> None:
    found = as_api_error(error)
    assert found.status in (500, 503)
    assert "/a/path" not in found.message
    assert found.status == 500 or "retry-after" in found.headers


@pytest.mark.parametrize("error", RESOURCES, ids=repr)
def test_exhausted_resources_are_a_503(error: Exception) -> None:
    assert as_api_error(error).code == "out_of_resources"


REQUESTS: dict[str, Any] = {
    "/v1/completions": {"prompt": "x"},
    "/v1/chat/completions": {"messages": USER},
    "/v1/responses": {"input": "x"},
    "/v1/messages": {"messages": USER, "max_tokens": 3, "model": "fake"},
    "/v1/messages/count_tokens": {"messages": USER, "model": "fake"},
    "/v1/embeddings": {"input": "x"},
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [65]},
}


@pytest.mark.parametrize("path", REQUESTS)
def test_a_thread_that_fails_is_never_a_4xx(live: Live, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokenizing raises what no client causes; the same request is served afterwards."""
    work = live.state.work
    for error in (RESOURCES[0], MemoryError(), ValueError(), KeyError(), ModelError(), RecursionError(), EngineDied()):

        async def fail(work: object, size: int, error: Exception = error) -> None:
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(work, "run", fail)
            assert live.post(path, REQUESTS[path]).status_code in (500, 503), repr(error)
    assert live.post(path, REQUESTS[path]).status_code == 200


def test_the_first_requests_of_a_server_that_may_start_no_thread_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose body is read on a thread. A form cannot be tried, because no process may start either."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with running() as live:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        with failing(*FAULTS[3], lasting=True):
            for body in ({"prompt": "x", "max_tokens": 3}, {"prompt": "x", "max_tokens": 3, "n": None}):
                content = json.dumps(body).encode().ljust(2**17 if "n" in body else 0)
                headers = {"content-type": "application/json"}
                response = live.http.post("/v1/completions", content=content, headers=headers)
                assert response.json()["usage"]["completion_tokens"] == 3
            response = live.post("/v1/completions", {"prompt": "x", "guided_choice": ["a"]})
            assert response.status_code == 503, response.text
            assert "retry-after" in response.headers
        monkeypatch.undo()
        assert live.complete(prompt="x", max_tokens=3, guided_choice=["a"])["usage"]["completion_tokens"] == 3
