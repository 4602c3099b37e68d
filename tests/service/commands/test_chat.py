"""The terminal chat against a server whose answers are known, through pipes and through a pseudo-terminal."""

import os
import pty
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.service.commands.fake_openai import FakeOpenAI, serving
from tests.waiting import PATIENCE, children, ended, eventually

COMMAND = [sys.executable, "-m", "service", "chat"]


def pipe(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], input=text, capture_output=True, text=True, timeout=PATIENCE)


class Terminal:
    """A chat on a pseudo-terminal: its output, and the keys that a user types."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self._ours, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [*COMMAND, *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env=os.environ | variables,
        )
        os.close(theirs)
        self.output = ""

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def wait_for(self, text: str) -> None:
        """Wait for `text` in the output after the text of the last call. The output up to it is then dropped."""
        while text not in self.output:
            assert select.select([self._ours], [], [], PATIENCE)[0], f"no {text!r} in {self.output!r}"
            data = os.read(self._ours, 4096)  # an OSError when the chat has ended
            self.output += data.decode()
        self.output = self.output.split(text, 1)[1]

    def end(self) -> int:
        code = self.process.wait(PATIENCE)
        os.close(self._ours)
        return code


@contextmanager
def terminal(url: str) -> Iterator[Terminal]:
    opened = Terminal("--url", url)
    try:
        yield opened
    finally:
        opened.process.kill()
        opened.process.wait()


def test_a_piped_message_gets_a_plain_answer() -> None:
    fake = FakeOpenAI(pieces=("The capital ", "of France\x1b[31m", " is Paris."), key="k")
    with serving(fake) as url:
        ran = pipe(
            "What is the\ncapital of France?\n",
            *("--url", url, "--api-key", "k", "--system", "Be brief.", "--temperature", "0", "--max-tokens", "9"),
        )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("The capital of France[31m is Paris.\n", "", 0)
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


def test_a_thought_is_dimmed_before_the_answer_and_no_part_of_it() -> None:
    fake = FakeOpenAI(thoughts=("I add\x1b[31m", " them."), pieces=("It is", " 4."))
    with serving(fake) as url:
        assert pipe("2 + 2?", "--url", url).stdout == "It is 4.\n"
        with terminal(url) as chat:
            chat.wait_for("> ")
            chat.type("2 + 2?\n")
            chat.wait_for("\x1b[2mI add[31m\x1b[0m\x1b[2m them.\x1b[0m\r\n\r\nIt is 4.\r\n")
            chat.wait_for("> ")
            chat.type("Sure?\n")
            chat.wait_for("4.\r\n")
    assert fake.requests[-1]["messages"][1] == {"role": "assistant", "content": "It is 4."}


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


def test_a_conversation_is_remembered_until_reset() -> None:
    fake = FakeOpenAI(pieces=("Yes", "."))
    with serving(fake) as url, terminal(url) as chat:
        chat.wait_for("fake-1 is ready")
        for line, expected in (
            ("/help", "/reset"),
            ("/nothing", "no command /nothing"),
            ("One?", "Yes."),
            ("Two?", "Yes."),
        ):
            chat.wait_for("> ")
            chat.type(f"{line}\n")
            chat.wait_for(expected)
        chat.wait_for("> ")
        chat.type("/reset\nThree?\n")
        chat.wait_for("Yes.")
        chat.wait_for("> ")
        chat.type("/exit\n")
        assert chat.end() == 0
    histories = [[message["content"] for message in body["messages"]] for body in fake.requests]
    assert histories == [["One?"], ["One?", "Yes.", "Two?"], ["Three?"]]


def test_ctrl_c_stops_the_answer_and_ctrl_d_the_chat() -> None:
    fake = FakeOpenAI(pieces=("endless ",) * 1000, delay=0.05)
    with serving(fake) as url, terminal(url) as chat:
        chat.wait_for("> ")
        chat.type("Go on\n")
        chat.wait_for("endless endless")
        os.kill(chat.process.pid, signal.SIGINT)
        chat.wait_for("[stopped]")
        assert fake.closed_early.wait(PATIENCE)
        chat.wait_for("> ")
        fake.pieces = ("short",)
        chat.type("And now?\n")
        chat.wait_for("short")
        chat.wait_for("> ")
        chat.type("\x04")
        assert chat.end() == 0
    first, second = fake.requests[0]["messages"], fake.requests[1]["messages"]
    assert second[0] == first[0]
    assert second[1]["content"].startswith("endless endless")
    assert second[2]["content"] == "And now?"


@pytest.mark.timeout(300)  # three processes that import PyTorch or half the service, and a model to load
def test_a_server_of_its_own_answers_and_ends_with_the_chat(embedded_model: Path) -> None:
    chat = Terminal(str(embedded_model), "--temperature", "0")
    try:
        chat.wait_for("is ready")
        (server,) = children(chat.process.pid)
        (engine,) = children(server)
        chat.wait_for("> ")
        chat.type("What is the capital of Japan?\n")  # no close second token, whatever the processor rounds to
        chat.wait_for("The capital of Japan is Tokyo.")
    finally:
        chat.process.kill()  # the hard way: nothing of ours runs any more
    chat.process.wait()
    eventually(lambda: ended(server) and ended(engine), "server and engine end")


@pytest.mark.timeout(300)
def test_ctrl_c_while_loading_ends_the_server_too(embedded_model: Path) -> None:
    with subprocess.Popen([*COMMAND, str(embedded_model)], stdin=subprocess.PIPE) as chat:
        eventually(lambda: children(chat.pid), "the server starts")
        (server,) = children(chat.pid)
        eventually(lambda: children(server), "its engine starts")
        chat.send_signal(signal.SIGINT)
        assert chat.wait(PATIENCE) == 130
    assert ended(server)


def test_a_model_that_is_not_there_is_the_servers_one_line() -> None:
    ran = pipe("Hi", "/nowhere/at/all")
    assert ran.returncode == 1
    assert ran.stderr.startswith("noria: there is no model at '/nowhere/at/all'")
    assert len(ran.stderr.splitlines()) == 1
