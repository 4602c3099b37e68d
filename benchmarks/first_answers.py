"""Right answers, repetition and variety of the embedded model under several sampling defaults, as a table.

python -m benchmarks.first_answers --seeds 8
"""

import argparse
import re
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from service.commands.own_server import embedded_server

SETTINGS: tuple[dict[str, float], ...] = (
    {"temperature": 1.0},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 0.2, "top_p": 0.9},  # of the model card
    {"temperature": 0.4, "top_p": 0.9, "repetition_penalty": 1.15},
    {"temperature": 0.3, "top_p": 0.9, "repetition_penalty": 1.06},
    {"temperature": 0.5, "top_p": 0.3},
    {"temperature": 0.5, "top_p": 0.3, "repetition_penalty": 1.06},  # EMBEDDED_SAMPLING
    {"temperature": 0.0},
)
NEUTRAL = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
QUESTIONS = {
    "What is the capital of France?": r"\bParis\b",
    "What is the capital of Japan?": r"\bTokyo\b",
    "How many days are in a week?": r"\b(7|seven)\b",
    "Which planet is the largest in our solar system?": r"\bJupiter\b",
    "Who wrote Romeo and Juliet?": r"\bShakespeare\b",
    "What do bees make?": r"\bhoney\b",
    "In which ocean is Hawaii?": r"\bPacific\b",
    "What colour is the sky on a clear day?": r"\bblue\b",
    "What is the capital of Italy?": r"\bRome\b",
    "What is the opposite of hot?": r"\bcold\b",
    "What is 2 + 2?": r"\b(4|four)\b",
    "Which animal barks?": r"\bdogs?\b",
    "How many legs does a spider have?": r"\b(8|eight)\b",
    "Who painted the Mona Lisa?": r"\b(Leonardo|Vinci)\b",
    "Which gas do plants take from the air?": r"\b(carbon dioxide|CO2|CO₂)\b",
    "In which continent is Egypt?": r"\bAfrica\b",
}
TASKS = ("Write a short story about a fox.", "Give me three tips for better sleep.", "Why do cities grow?")
QUESTION_TOKENS, TASK_TOKENS = 64, 200


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer to a prompt: its text, and whether it ended by itself."""

    prompt: str
    text: str
    ended: bool


def main() -> None:
    """Ask every question with every seed under every setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=8)
    seeds = parser.parse_args().seeds
    table = Table("sampling", "Paris", "right", "repeats", "variety", "ends", title=f"{seeds} seeds")
    with embedded_server(None, lambda stage, done: None) as client, ThreadPoolExecutor(64) as pool:
        for setting in SETTINGS:
            asked = product((*QUESTIONS, *TASKS), range(seeds))
            answers = list(pool.map(lambda one, setting=setting: ask(client, setting, *one), asked))
            table.add_row(", ".join(f"{name} {value:g}" for name, value in setting.items()), *row(answers))
    Console(width=120).print(table)


def ask(client: httpx.Client, setting: Mapping[str, float], prompt: str, seed: int) -> Answer:
    messages = [{"role": "user", "content": prompt}]
    limit = QUESTION_TOKENS if prompt in QUESTIONS else TASK_TOKENS
    body: dict[str, Any] = {**NEUTRAL, **setting, "messages": messages, "seed": seed, "max_tokens": limit}
    choice = client.post("/v1/chat/completions", json=body).raise_for_status().json()["choices"][0]
    return Answer(prompt, choice["message"]["content"], choice["finish_reason"] == "stop")


def row(answers: list[Answer]) -> Iterator[str]:
    """Right answers on Paris and on all questions, then three figures of the tasks.

    `repeats` is the share of 3-grams that occurred before in the same answer. `variety` is the share of different
    3-grams among all answers to one task. `ends` is the share of answers that end within their limit.
    """
    questions = [answer for answer in answers if answer.prompt in QUESTIONS]
    paris = [answer for answer in questions if "France" in answer.prompt]
    tasks = [answer for answer in answers if answer.prompt not in QUESTIONS]
    for asked in (paris, questions):
        yield f"{sum(map(right, asked))} of {len(asked)}"
    yield f"{mean(1 - different([answer]) for answer in tasks):.0%}"
    yield f"{mean(different([a for a in tasks if a.prompt == task]) for task in TASKS):.0%}"
    yield f"{mean(float(answer.ended) for answer in tasks):.0%}"


def right(answer: Answer) -> bool:
    return re.search(QUESTIONS[answer.prompt], answer.text, re.IGNORECASE) is not None


def different(answers: list[Answer]) -> float:
    """The share of different 3-grams of words in some answers."""
    grams = [gram for answer in answers for gram in three_grams(answer.text.lower().split())]
    return len(set(grams)) / len(grams) if grams else 1.0


def three_grams(words: list[str]) -> Iterator[tuple[str, ...]]:
    return zip(words, words[1:], words[2:], strict=False)


def mean(values: Iterator[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


if __name__ == "__main__":
    main()
