"""`noria chat` with a piped message, and its own server."""

import contextlib
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.commands import own_server
from tests.service.command_line import Done, noria
from tests.service.commands.chat.pseudo_terminal import terminal
from tests.service.commands.fake_openai import FakeOpenAI, serving
from tests.waiting import children, ended, eventually


def pipe(text: str, *arguments: str) -> Done:
    return noria("chat", *arguments, typed=text)


def test_a_piped_message_gets_a_plain_answer() -> None:
    fake = FakeOpenAI(pieces=("The capital ", "of France\x1b[31m", " is Paris."), key="k")
    with serving(fake) as url:
        ran = pipe(
            "What is the\ncapital of France?\n",
            *("--url", url, "--api-key", "k", "--system", "Be brief.", "--temperature", "0", "--max-tokens", "9"),
        )
    assert (ran.stdout, ran.returncode) == ("The capital of France[31m is Paris.\n", 0)
    assert ran.stderr == "[cut at max_tokens 9]\n"
    assert fake.requests == [
        {
            "model": "fake-1",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "What is the\ncapital of France?"},
            ],
            "stream": True,
            "temperature": 0.0,
            "max_tokens": 9,
        }
    ]


def test_a_thought_is_no_part_of_a_piped_answer() -> None:
    fake = FakeOpenAI(thoughts=("I add", " them."), pieces=("It is", " 4."), finish_reason="stop")
    with serving(fake) as url:
        ran = pipe("2 + 2?", "--url", url)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("It is 4.\n", "", 0)


@pytest.mark.parametrize(
    ("fake", "message"),
    [
        (FakeOpenAI(key="other"), "wrong key"),
        (FakeOpenAI(fails={1: 503}), "told to fail with 503"),
        (FakeOpenAI(break_stream="error"), "the engine died"),
    ],
)
def test_a_servers_error_is_one_line_and_an_exit_code(fake: FakeOpenAI, message: str) -> None:
    with serving(fake) as url:
        ran = pipe("Hi", "--url", url)
    assert ran.returncode == 1
    assert ran.stderr == f"noria: {message}\n"


def test_a_refused_connection_is_one_line() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        ran = pipe("Hi", "--url", f"http://127.0.0.1:{closed.getsockname()[1]}")
    assert ran.returncode == 1
    assert ran.stderr.startswith("noria: cannot connect to http://127.0.0.1:")
    assert len(ran.stderr.splitlines()) == 1


def test_an_empty_pipe_is_refused() -> None:
    with serving(FakeOpenAI()) as url:
        ran = pipe(" \n", "--url", url)
    assert (ran.stderr, ran.returncode) == ("noria: no message: the input is empty\n", 1)


@pytest.mark.timeout(300)  # three processes that import PyTorch or half the service, and a model to load
def test_a_server_of_its_own_answers_and_ends_with_the_chat(
    embedded_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextlib.ExitStack() as stack:
        taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))  # by a server with the same variables
        monkeypatch.setenv("NORIA_HEALTH_PORT", str(taken.getsockname()[1]))
        monkeypatch.setenv("NORIA_ROOT_PATH", "/x")
        chat = stack.enter_context(terminal(str(embedded_model), "--temperature", "0"))
        # It ends the hard way: nothing of ours runs then.
        chat.shows("is ready")
        (server,) = children(chat.process.pid)
        (engine,) = children(server, "noria-engine")
        chat.send("What is the capital of Japan?")  # no close second token, whatever the processor rounds to
        chat.shows("The capital of Japan is Tokyo.")
    eventually(lambda: ended(server) and ended(engine), "server and engine end")


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that take the place of a server: one that never is ready, and one that cannot start."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str, environment: object, **options: Any) -> subprocess.Popen[bytes]:
        code = "import time; time.sleep(60)" if "slow" in arguments else "raise SystemExit('noria: there is no model')"
        started.append(subprocess.Popen([sys.executable, "-c", code], **options))
        return started[-1]

    monkeypatch.setattr(own_server, "start_python", start)
    return started


LEAK = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""httpcore leaves a Unix socket that cannot connect to the garbage collector."""


@LEAK
def test_ctrl_c_while_loading_ends_the_server_too(stand_in: list[subprocess.Popen[bytes]]) -> None:
    def interrupt(stage: str, done: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), own_server.own_socket("slow", interrupt):
        pytest.fail("it is not ready")
    assert stand_in[0].returncode is not None


@LEAK
def test_a_server_that_cannot_start_is_its_own_last_line(stand_in: list[subprocess.Popen[bytes]]) -> None:
    assert pipe("Hi", "/nowhere") == Done(1, "", "noria: there is no model\n")
    assert stand_in[0].returncode == 1
