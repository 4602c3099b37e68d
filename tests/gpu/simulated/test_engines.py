"""Engines that end in the middle of answers: by a signal, and because the card does not go on."""

import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.server import MODEL, LiveServer, serving
from tests.gpu.simulated.card import CONTEXT, Card
from tests.waiting import PATIENCE, ended, eventually

pytestmark = pytest.mark.simulated

ONE = "33"
N_STREAMS, N_TOKENS = 4, 200


@pytest.fixture
def card(tmp_path: Path) -> Card:
    return Card("9.0", tmp_path)


@pytest.fixture
def server(card: Card) -> Iterator[LiveServer]:
    variables = card.variables() | {"SIM_TOKEN": ONE}
    with serving("--device", "cuda", paced=True, **variables) as started:
        yield started


def stream(server: LiveServer, number: int, flowing: threading.Barrier) -> str:
    """The text of a stream, which waits at the barrier after its first tokens."""
    chunks = server.openai.completions.create(
        model=MODEL, prompt=f"Count {number}:", max_tokens=N_TOKENS, stream=True, temperature=0
    )
    texts = [next(chunks).choices[0].text for _ in range(3)]
    flowing.wait(PATIENCE)
    return "".join(texts) + "".join(chunk.choices[0].text for chunk in chunks if chunk.choices)


@contextmanager
def streams(server: LiveServer) -> Iterator[list[Future[str]]]:
    """Streams in their middle, which become fast when the block ends."""
    flowing = threading.Barrier(N_STREAMS + 1)
    with ThreadPoolExecutor(N_STREAMS) as pool:
        with server.slow():
            found = [pool.submit(stream, server, number, flowing) for number in range(N_STREAMS)]
            flowing.wait(PATIENCE)
            yield found
        wait(found, PATIENCE)


class Readiness:
    """Notes in a thread whether a server ever said that it is not ready."""

    def __init__(self, server: LiveServer) -> None:
        self._server, self._stop = server, threading.Event()
        self.was_unready = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Readiness":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.005):
            if not self._server.ready():
                self.was_unready.set()


def check_answers(server: LiveServer, found: list[Future[str]]) -> None:
    """All streams are whole, and the next request is answered at once."""
    assert [future.result() for future in found] == ["1" * N_TOKENS] * N_STREAMS
    answer = server.openai.completions.create(model=MODEL, prompt="Count:", max_tokens=3)
    assert answer.choices[0].text == "111"


def test_the_next_engine_takes_all_memory_and_goes_on(server: LiveServer, card: Card) -> None:
    before, engine = card.used(), server.engine_pid
    assert before.keys() == {engine}, "the zygote has no context"
    with streams(server) as found:
        os.kill(engine, signal.SIGKILL)
        eventually(lambda: ended(engine), "the engine has ended")
    check_answers(server, found)
    after = card.used()
    assert after.keys() == {server.engine_pid}
    assert after[server.engine_pid] == pytest.approx(before[engine], rel=0.01)
    assert before[engine] > 0.85 * card.gib * 2**30 + CONTEXT


def test_streams_outlive_a_card_that_does_not_go_on(server: LiveServer, card: Card) -> None:
    """After an illegal access each call of CUDA in a process fails. Only another process can go on."""
    engine = server.engine_pid
    with Readiness(server) as readiness, streams(server) as found:
        card.break_down(engine)
        eventually(lambda: ended(engine), "the engine has ended")
        assert readiness.was_unready.wait(PATIENCE), "the server said that it is ready"
    check_answers(server, found)
    assert server.metric("noria_engine_restarts_total") == 1
