"""A real server while the processes of grammars are killed and stopped: every answer is whole, none is a 4xx."""

import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server import LiveServer, serving
from tests.faults import offspring
from tests.waiting import ended, eventually, strike

NUMBERS = count(100)


@pytest.fixture(scope="module")
def directory(short_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the model that a test may remove."""
    return Path(shutil.copy(short_model, tmp_path_factory.mktemp("copy")))


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[LiveServer]:
    with serving(str(directory), "--max-sequences", "4", paced=True) as started:
        yield started


def new_form(server: LiveServer) -> None:
    """Ask for a form that nobody has asked for."""
    regex = f"[a-c]{next(NUMBERS)}[0-9]"
    body = {"prompt": "Go", "max_tokens": 20, "structured_outputs": {"regex": regex}}
    response = server.http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    assert re.fullmatch(regex, response.json()["choices"][0]["text"])


def follower(server: LiveServer) -> int:
    (found,) = offspring(server.engine_pid)
    return found


def trier(server: LiveServer) -> int:
    (found,) = set(offspring(server.process.pid)) - {server.engine_pid}
    return found


SIGNALS = pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])


@SIGNALS
def test_an_answer_in_the_middle_of_which_the_follower_is_lost(server: LiveServer, number: signal.Signals) -> None:
    """A fresh follower reads the tokens of each sequence again: the text is the one without the loss."""
    ask: dict[str, Any] = {"model": server.openai.models.list().data[0].id, "prompt": "Go", "max_tokens": 100}
    ask |= {"temperature": 0, "n": 3, "extra_body": {"structured_outputs": {"regex": f"([a-z]+ ){{90}}{number}"}}}
    expected = {choice.index: choice.text for choice in server.openai.completions.create(**ask).choices}
    before = server.metric("noria_grammar_restarts_total", process="follower")
    texts = dict.fromkeys(expected, "")
    with ExitStack() as stack:
        stack.enter_context(server.slow())
        for n, chunk in enumerate(server.openai.completions.create(**ask, stream=True)):
            if n == 5:
                strike(follower(server), number)
                stack.close()
            texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == expected
    assert server.metric("noria_grammar_restarts_total", process="follower") == before + 1


@SIGNALS
def test_both_processes_lost_before_a_new_form(server: LiveServer, number: signal.Signals) -> None:
    new_form(server)
    lost = [follower(server), trier(server)]
    for pid in lost:
        strike(pid, number)
    new_form(server)
    assert all(map(ended, lost))
    for does in ("follows", "tries"):
        eventually(lambda does=does: f"the process that {does} grammars is lost" in server.log, "the log says so")  # type: ignore[misc]


def test_a_stopped_follower_dies_with_its_engine(server: LiveServer) -> None:
    new_form(server)
    pid = follower(server)
    strike(pid, signal.SIGSTOP)
    os.kill(server.engine_pid, signal.SIGKILL)
    eventually(lambda: ended(pid), "the follower has died with its engine")
    eventually(lambda: server.metric("noria_engine_restarts_total") == 1, "the engine's end was seen")
    server.wait_ready()
    new_form(server)


def test_forms_without_the_models_directory(server: LiveServer, directory: Path) -> None:
    """The last test of this server: no engine could load the model again."""
    directory.unlink()
    for pid in (follower(server), trier(server)):
        strike(pid, signal.SIGKILL)
    new_form(server)
