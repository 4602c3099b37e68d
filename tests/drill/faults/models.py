"""Several models: one dies, loads, goes or comes while another one serves."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

import httpx

from model.machine.host import free_memory
from tests.drill.canary import COMPLETIONS, GREEDY, PROMPT, Answer, Question, ask
from tests.drill.explained import NOTHING
from tests.drill.faults.deaths import LOAD
from tests.drill.processes import send
from tests.drill.row import MIB, Promise, Row, check
from tests.drill.soak import GROWTH_COUNT, GROWTH_MEMORY, measure, slope
from tests.drill.stage import Stage
from tests.drill.target import LARGE, OTHER, THIRD
from tests.drill.wire import fetch

LATE_SECONDS = 1.0
"""The longest wait for a token of a model while another one is replaced or loads: both need the same cores."""
N_RACES = 12
N_LOADS = 30
LOAD_SECONDS = 60.0


def question(model: str) -> Question:
    return Question(COMPLETIONS, PROMPT | GREEDY | {"model": model})


def load(stage: Stage, model: str) -> httpx.Response:
    return _post(stage, "load", model)


def unload(stage: Stage, model: str) -> httpx.Response:
    return _post(stage, "unload", model)


def _post(stage: Stage, what: str, model: str) -> httpx.Response:
    url = f"{stage.target.url}/v1/models/{what}"
    return fetch("POST", url, json={"model": model}, timeout=LOAD_SECONDS)


def answered(stage: Stage, model: str, alone: str) -> Answer:
    """The right answer of a model. Raises Broken for any other."""
    found = ask(stage.target.url, question(model))
    check((found.status, found.text) == (200, alone), f"{model} answered {found.status}: {found.text}")
    return found


def answered_again(stage: Stage, model: str) -> None:
    """Wait until a model that could not be loaded answers, and unload it. Raises Broken if it does not in time."""
    deadline = time.monotonic() + LOAD_SECONDS
    while (again := ask(stage.target.url, question(model))).status != 200 and time.monotonic() < deadline:
        time.sleep(0.25)
    check(again.status == 200, f"{again.status}: {again.text}")
    unload(stage, model)


@contextmanager
def stream_of_first(stage: Stage) -> Iterator[list[float]]:
    """A long stream of the first model, and the times of its events. It ends with the block."""
    times: list[float] = []
    body = {"prompt": "long", "max_tokens": 4000, "ignore_eos": True, "stream": True}

    def read() -> None:
        with httpx.stream("POST", stage.target.url + COMPLETIONS, json=body, timeout=LOAD_SECONDS) as response:
            for line in response.iter_lines():
                times.extend([time.monotonic()] * bool(line))
                if ended:
                    return

    ended: list[bool] = []
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(read)
        while not times:
            time.sleep(0.01)
        try:
            yield times
        finally:
            ended.append(True)
            reading.result()


def longest_wait(times: list[float]) -> float:
    return max((after - before for before, after in pairwise(times)), default=0.0)


def other_killed(stage: Stage) -> str:
    """Kill the engine of one model while the other has a stream. Raises Broken for a token that is late."""
    alone = ask(stage.target.url, question(OTHER)).text
    with stream_of_first(stage) as times:
        send(stage.target.find("second engine").pid, signal.SIGKILL)
        deadline = time.monotonic() + LOAD_SECONDS
        while (found := ask(stage.target.url, question(OTHER))).status != 200 and time.monotonic() < deadline:
            time.sleep(0.1)
    check((found.status, found.text) == (200, alone), f"{OTHER} answered {found.status}: {found.text}")
    waited = longest_wait(times)
    check(waited <= LATE_SECONDS, f"a token of the first model came {waited:.2f} s after the one before it")
    return f"the longest wait for a token of the first model was {1000 * waited:.0f} ms"


def loaded_in_a_storm(stage: Stage) -> str:
    """Load a model while others compute; many ask for it at once."""
    unload(stage, THIRD)
    loads = stage.target.metric("noria_model_loads_total", model=THIRD, outcome="ok")
    with ThreadPoolExecutor(8) as pool:
        found = [*pool.map(lambda _: ask(stage.target.url, question(THIRD)), range(8))]
    check(all(answer.status == 200 for answer in found), f"statuses {[answer.status for answer in found]}")
    check(len({answer.text for answer in found}) == 1, "answers differ")
    more = stage.target.metric("noria_model_loads_total", model=THIRD, outcome="ok") - loads
    check(more == 1, f"it was loaded {more:g} times")
    unload(stage, THIRD)
    return "8 requests loaded it once"


def races(stage: Stage) -> str:
    """Load, unload and ask at once, again and again."""
    alone = ask(stage.target.url, question(THIRD)).text
    statuses: list[int] = []

    def act(number: int) -> None:
        if number % 3 == 0:
            statuses.append(unload(stage, THIRD).status_code)
        elif number % 3 == 1:
            statuses.append(load(stage, THIRD).status_code)
        else:
            statuses.append(answered(stage, THIRD, alone).status)

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(act, number) for number in range(3 * N_RACES)]:
            done.result()
    check(set(statuses) == {200}, f"statuses {sorted(set(statuses))}")
    check(unload(stage, THIRD).json()["state"] == "unloaded", "it is still loaded")
    return f"{len(statuses)} requests"


def vanished(stage: Stage) -> str:
    """Ask for a model whose files are gone, and again once they are back."""
    unload(stage, THIRD)
    folder = stage.target.folder / "third"
    folder.rename(aside := folder.with_suffix(".gone"))
    found = ask(stage.target.url, question(THIRD))
    aside.rename(folder)
    check(found.status == 503 and "could not be loaded" in found.text, f"{found.status}: {found.text}")
    check(str(folder.parent) not in found.text, f"the error tells a path: {found.text}")
    answered_again(stage, THIRD)
    return found.text[:120]


EATER = "import sys; held = bytearray(int(sys.argv[1])); held[::4096] = b'x' * len(held[::4096]); print(); input()"
"""A program that takes memory, page by page, and keeps it until its input ends."""


def neighbour(stage: Stage) -> str:
    """Ask for a model that fits by its plan, while another process has taken the memory for it; then once more."""
    n_bytes = free_memory() * 6 // 10
    command = [sys.executable, "-c", EATER, str(n_bytes)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as eater:
        assert eater.stdout is not None
        eater.stdout.readline()
        found = ask(stage.target.url, question(LARGE))
        eater.communicate()
    check(found.status == 503 and "could not be loaded" in found.text, f"{found.status}: {found.text}")
    answered_again(stage, LARGE)
    return found.text[:160]


def loads(times: int, stage: Stage) -> str:
    """Load and unload a model many times, and look at the slopes of the second half."""
    samples: list[tuple[float, float, float]] = []
    for _ in range(times):
        load(stage, THIRD).raise_for_status()
        unload(stage, THIRD).raise_for_status()
        samples.append(measure(stage.target))
    half = samples[len(samples) // 2 :]
    memory, descriptors, threads = (slope(column) for column in zip(*half, strict=True))
    seen = f"{times} loads: memory {memory / MIB:+.1f} MiB, descriptors {descriptors:+.1f}, threads {threads:+.1f}"
    check(memory <= GROWTH_MEMORY and max(descriptors, threads) <= GROWTH_COUNT, seen)
    return seen


GONE = "the-model-cannot-be-loaded"
ROWS = tuple(
    Row(fault, Promise(own, memory=128 * MIB), action, "models", askers, cause)
    for fault, own, action, askers, cause in (
        (
            "SIGKILL of the engine of another model",
            f"no token of the first model is late by more than {LATE_SECONDS:g} s; the other one answers again",
            other_killed,
            1,
            "the-engine-was-killed",
        ),
        ("a model is loaded under load", "eight requests for it load it once", loaded_in_a_storm, LOAD, NOTHING),
        ("loads, unloads and requests of one model at once", "all succeed", races, 1, NOTHING),
        ("the files of a model are gone", "a 503 with the reason, and answers once they are back", vanished, 1, GONE),
        ("another process takes the memory of a model", "a 503 with the reason, and answers later", neighbour, 1, GONE),
        (f"{N_LOADS} loads and unloads", "memory, descriptors and threads stay", partial(loads, N_LOADS), 1, NOTHING),
    )
)
