"""Streams of every API whose engine dies under them, at a random moment."""

import json
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx

from tests.drill.canary import CHAT, COMPLETIONS, FORM, GREEDY, SEEDED, Question
from tests.drill.faults.deaths import CAUSES
from tests.drill.processes import send
from tests.drill.row import SERVES_SECONDS, Promise, Row, check
from tests.drill.stage import Stage
from tests.gathered import gathered

STREAMS = 32
DEATHS = 2
"""Times that the engine is struck in a row."""
END_SECONDS = 120.0
FAILED = "failed:"
TEXTS = ("text", "content", "delta", "partial_json", "thinking", "finish_reason", "stop_reason", "status", "name")
STORY = {"prompt": "Once upon a time, in a small village, there", "max_tokens": 160}
TALK = {"messages": [{"role": "user", "content": "Tell me a long story of a water wheel."}], "max_tokens": 160}
TOOL = {"name": "note", "parameters": FORM["json_schema"]["schema"]}  # type: ignore[index]
QUESTIONS = (
    Question(COMPLETIONS, STORY | GREEDY),
    Question(COMPLETIONS, STORY | SEEDED | {"n": 2, "logprobs": 1}),
    Question(COMPLETIONS, STORY | SEEDED | {"stop": ["forest", "time,"], "frequency_penalty": 0.3}),
    Question("/v1/fim/completions", {"prompt": "def wheel():", "max_tokens": 160} | SEEDED),
    Question(CHAT, TALK | SEEDED),
    Question(CHAT, TALK | SEEDED | {"response_format": FORM}),
    Question("/v1/messages", TALK | {"temperature": 0}),
    Question("/v1/responses", {"input": "Tell me a long story of a water wheel.", "max_output_tokens": 160} | SEEDED),
)


def spoken(events: list[dict[str, Any]]) -> str:
    """The texts of a stream, and why it ended. It says nothing of the cache, which a death empties."""
    return str(sorted((str(path), value) for path, value in gathered(events).items() if path[-1] in TEXTS))


class Stream:
    """One stream: what it says, and when it has begun."""

    def __init__(self, url: str, question: Question) -> None:
        self.begun = threading.Event()
        self._url, self._question = url, question

    def read(self) -> str:
        """Read it to its end; what it says, or what went wrong."""
        try:
            events = [*self._events()]
        except (httpx.HTTPError, ValueError) as error:
            return f"{FAILED} {type(error).__name__}"
        finally:
            self.begun.set()
        broken = next((event for event in events if event.get("error") or event.get("type") == "error"), None)
        return spoken(events) if broken is None else f"{FAILED} {broken}"

    def _events(self) -> Iterator[dict[str, Any]]:
        body = {**self._question.body, "stream": True}
        with (
            httpx.Client(verify=False, timeout=END_SECONDS) as client,
            client.stream("POST", self._url + self._question.path, json=body) as response,
        ):
            response.raise_for_status()
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line.removeprefix("data: "))
                    self.begun.set()


def under_streams(number: signal.Signals, stage: Stage) -> str:
    """Strike the engine, at random moments, while streams of every API run."""
    rng = random.Random()
    alone = [Stream(stage.target.url, question).read() for question in QUESTIONS]
    check(not any(text.startswith(FAILED) for text in alone), f"an undisturbed stream fails: {alone}")
    continued = stage.target.metric("noria_requests_continued_total")
    streams = [Stream(stage.target.url, QUESTIONS[index % len(QUESTIONS)]) for index in range(STREAMS)]
    with ThreadPoolExecutor(STREAMS) as pool:
        reading = [pool.submit(stream.read) for stream in streams]
        for _ in range(DEATHS):
            streams[rng.randrange(STREAMS)].begun.wait(END_SECONDS)
            time.sleep(rng.uniform(0.0, 1.5))
            strike(number, stage)
        said = [future.result() for future in reading]
    stage.mark()
    more = stage.target.metric("noria_requests_continued_total") - continued
    wrong = [text for index, text in enumerate(said) if text != alone[index % len(QUESTIONS)]]
    check(not wrong, f"{len(wrong)} of {STREAMS} streams ended otherwise, such as {(wrong or [''])[0][:200]}")
    check(more >= 1, "no stream was in the engine when it was struck")
    return f"{STREAMS} of {STREAMS} streams ended as undisturbed, {more:g} times a sequence went on"


def strike(number: signal.Signals, stage: Stage) -> None:
    """Send a signal to the engine, and wait until another one serves."""
    restarts = stage.target.metric("noria_engine_restarts_total")
    send(stage.target.find("engine").pid, number)
    deadline = time.monotonic() + SERVES_SECONDS
    while stage.target.metric("noria_engine_restarts_total") == restarts or not stage.target.ready():
        check(time.monotonic() < deadline, f"no other engine serves after {SERVES_SECONDS:g} s")
        time.sleep(0.02)


ROWS = tuple(
    Row(
        f"{number.name} of the engine, twice, under {STREAMS} streams of all APIs",
        Promise("every stream ends with the text of an undisturbed one", serves=SERVES_SECONDS),
        partial(under_streams, number),
        cause=CAUSES[number],
    )
    for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV)
)
