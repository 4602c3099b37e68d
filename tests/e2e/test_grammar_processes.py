"""Grammars in a real server, whose processes are killed and stopped: every answer is whole, none is a 4xx."""

import json
import os
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from model.grammar.thinking import GRACE_TOKENS
from tests.e2e.server import LiveServer, serving
from tests.faults import offspring
from tests.waiting import ended, eventually, named, strike

NUMBERS = count(100)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content.split('</think>')[-1].lstrip() }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""
"""A template that opens the thought, as those of DeepSeek-R1's distillations do."""


@pytest.fixture(scope="module")
def directory(short_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the model that a test may remove."""
    return Path(shutil.copy(short_model, tmp_path_factory.mktemp("copy")))


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[LiveServer]:
    template = directory.with_name("template.jinja")
    template.write_text(TEMPLATE)
    flags = ("--max-sequences", "4", "--chat-template", str(template), "--reasoning-budget", "12")
    with serving(str(directory), *flags, paced=True) as started:
        yield started


def test_a_thought_with_a_budget(server: LiveServer) -> None:
    ask: dict[str, Any] = {"messages": [{"role": "user", "content": "Describe a person."}], "max_tokens": 120}
    ask |= {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}}
    ask |= {"temperature": 1, "top_p": 1, "repetition_penalty": 1}
    reply = server.http.post("/v1/chat/completions", json=ask | {"seed": 3}).json()
    message = reply["choices"][0]["message"]
    jsonschema.validate(json.loads(message["content"]), PERSON)
    assert message["reasoning_content"]
    n_thought = reply["usage"]["completion_tokens_details"]["reasoning_tokens"]
    assert 12 <= n_thought <= 12 + GRACE_TOKENS + 4
    none = server.http.post("/v1/chat/completions", json=ask | {"reasoning_effort": "none"}).json()
    assert "reasoning_content" not in none["choices"][0]["message"]
    jsonschema.validate(json.loads(none["choices"][0]["message"]["content"]), PERSON)
    assert server.metric("noria_reasoning_tokens_total") > n_thought


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
    (found,) = (pid for pid in offspring(server.process.pid) if named(pid) == "noria-grammar")
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
