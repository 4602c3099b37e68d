"""The canary: it asks the same questions again and again, and compares the answers with those given alone."""

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.drill.wire import fetch

PATIENCE = 60.0
PROMPT = {"prompt": "The water wheel turns because", "max_tokens": 12}
TALK = {"messages": [{"role": "user", "content": "Why does a water wheel turn?"}], "max_tokens": 12}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 99}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
GREEDY, SEEDED = {"temperature": 0}, {"temperature": 1, "seed": 7}
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Question:
    """A request whose answer is always the same."""

    path: str
    body: dict[str, Any]


QUESTIONS = (
    Question(COMPLETIONS, PROMPT | GREEDY),
    Question(COMPLETIONS, PROMPT | SEEDED | {"stream": True}),
    Question(CHAT, TALK | GREEDY | {"stream": True}),
    Question(CHAT, TALK | SEEDED),
    Question(COMPLETIONS, PROMPT | SEEDED | {"n": 3, "logprobs": 1}),
    Question(CHAT, TALK | SEEDED | {"response_format": FORM, "max_tokens": 32}),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request got: `status` 200 with a text, another status, or 0 if the connection was lost."""

    status: int
    text: str
    begun: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.begun


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with its answer, and whether that is the right one."""

    question: Question
    answer: Answer
    right: bool

    @property
    def wrong(self) -> bool:
        """An answer that claims to be one and is not."""
        return self.answer.status == 200 and not self.right


def ask(url: str, question: Question, **options: Any) -> Answer:
    """The answer to one question. An error inside a stream counts as status 500. It never raises."""
    begun = time.monotonic()
    try:
        status, text = _ask(url, question, options)
    except httpx.HTTPError as error:
        status, text = 0, type(error).__name__
    except (ValueError, KeyError, IndexError) as error:  # an answer that cannot be read
        status, text = 200, f"unreadable: {error}"
    return Answer(status, text, begun, time.monotonic())


def _ask(url: str, question: Question, options: dict[str, Any]) -> tuple[int, str]:
    response = fetch("POST", url + question.path, json=question.body, timeout=PATIENCE, **options)
    if response.status_code != 200 or not question.body.get("stream"):
        return response.status_code, _plain(response)
    lines = response.text.splitlines()
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]  # the others are comments
    chunks = [json.loads(event) for event in events if event != "[DONE]"]
    if any("error" in chunk for chunk in chunks):
        return 500, json.dumps(chunks[-1])
    if events[-1:] != ["[DONE]"]:
        return 0, "the stream ended early"
    return 200, _texts(chunks)


def _plain(response: httpx.Response) -> str:
    return _texts([response.json()]) if response.status_code == 200 else response.text[:300]


def _texts(chunks: list[dict[str, Any]]) -> str:
    """Text and finish reason of each choice, whether they came in one piece or in many."""
    texts: dict[int, str] = {}
    for choice in itertools.chain.from_iterable(chunk["choices"] for chunk in chunks):
        part = choice.get("message") or choice.get("delta") or choice
        text = (part.get("text") or part.get("content") or "") + (choice.get("finish_reason") or "")
        texts[choice["index"]] = texts.get(choice["index"], "") + text
    return json.dumps(texts)


@contextmanager
def repeated(action: Callable[[int], float], n_threads: int) -> Iterator[None]:
    """Threads that do something again and again until the block ends, and wait for the seconds that it returns."""
    stop = threading.Event()

    def repeat(first: int) -> None:
        for number in itertools.count(first):
            if stop.wait(action(number)):
                return

    threads = [threading.Thread(target=repeat, args=(number,), daemon=True) for number in range(n_threads)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE + 5)


@dataclass(slots=True)
class Canary:
    """Asks a server. `alone` are the right answers, by the question's place; `learn` gets them from a quiet server."""

    url: str
    headers: dict[str, str] = field(default_factory=dict)
    questions: Sequence[Question] = QUESTIONS
    alone: list[str] = field(default_factory=list)

    def learn(self) -> None:
        """Ask everything twice. Raises RuntimeError unless both answers are the same."""
        self.alone = [self._learn(question) for question in self.questions]

    def once(self) -> list[Asked]:
        """Ask each question once, all at the same time."""
        with ThreadPoolExecutor(len(self.questions)) as pool:
            return list(pool.map(self._asked, range(len(self.questions))))

    @contextmanager
    def asking(self, n_askers: int) -> Iterator[list[Asked]]:
        """Ask until the block ends; gives the growing list of what was asked."""
        log: list[Asked] = []

        def ask_next(number: int) -> float:
            log.append(self._asked(number % len(self.questions)))
            return 0.02 if log[-1].right else 0.2

        with repeated(ask_next, n_askers):
            yield log

    def _asked(self, number: int) -> Asked:
        question = self.questions[number]
        answer = ask(self.url, question, headers=self.headers)
        return Asked(question, answer, answer.status == 200 and answer.text == self.alone[number])

    def _learn(self, question: Question) -> str:
        first, second = (ask(self.url, question, headers=self.headers) for _ in range(2))
        if first.status != 200 or first.text != second.text:
            raise RuntimeError(f"the canary cannot learn: {question.path} gave {first.text!r}, then {second.text!r}")
        return first.text
