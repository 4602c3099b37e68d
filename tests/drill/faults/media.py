"""The processes that decode images and audio: their death, and files that are made to break them."""

import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import count

from tests.drill.canary import Answer, Question, ask
from tests.drill.processes import send
from tests.drill.row import SERVES_SECONDS, Promise, Row, check
from tests.drill.stage import Stage
from tests.drill.target import Target

FILE_SECONDS = {signal.SIGKILL: 8.0, signal.SIGSEGV: 8.0, signal.SIGSTOP: 8.0}
BOMB_SECONDS = 25.0
HELPER = "a-helper-was-lost"
SEEDS = count(time.time_ns() % 10**9)
"""Numbers for files that no server has seen."""


@dataclass(frozen=True, slots=True)
class Medium:
    """What its decoder is tried with: requests with a good file, with one that takes long, and with hostile ones.

    Each call makes files that no server has seen. `setup` names a server that takes them.
    """

    name: str
    setup: str
    decoder: str
    good: Callable[[], Question]
    slow: Callable[[], Question]
    bombs: Callable[[], Sequence[Question]]
    wants: str

    def serves_new(self, target: Target, within: float) -> str:
        """Check that a file that the server has never seen is answered in time."""
        answer = ask(target.url, self.good(), headers=target.headers)
        check(answer.status == 200, f"a good {self.name} got {answer.status or 'no answer'} {answer.text[:160]}")
        check(answer.seconds <= within, f"a new {self.name} took {answer.seconds:.1f} s")
        return f"a new {self.name} took {answer.seconds:.1f} s"

    def strike(self, number: signal.Signals, stage: Stage) -> str:
        """Send a signal to the process while it works on a file that takes long."""
        self.serves_new(stage.target, BOMB_SECONDS)
        slow = self.slow()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask, stage.target.url, slow)
            time.sleep(0.1)
            send(stage.target.find(self.decoder).pid, number)
            seen = self.serves_new(stage.target, FILE_SECONDS[number])
            status = answer.result().status
        check(status in (200, 400), f"the {self.name} in it got {status or 'no answer'}")
        return seen

    def explode(self, stage: Stage) -> str:
        """Send all bombs twice, and good files meanwhile."""
        seen = [self._explode(stage, made) for made in [self.bombs()] * 2]
        return "; again: ".join(seen)

    def _explode(self, stage: Stage, made: Sequence[Question]) -> str:
        with ThreadPoolExecutor(len(made)) as pool:
            asked = [pool.submit(ask, stage.target.url, question) for question in made]
            seen = self.serves_new(stage.target, BOMB_SECONDS)
            answers: list[Answer] = [answer.result() for answer in asked]
        statuses = [answer.status for answer in answers]
        check(set(statuses) <= {200, 400}, f"the bombs got {statuses}")
        return f"{seen}, the bombs {max(answer.seconds for answer in answers):.1f} s"

    def rows(self) -> tuple[Row, ...]:
        """Each signal at rest and under load, and the bombs."""
        return (
            *(self._death(number, askers) for number in FILE_SECONDS for askers in (1, 6)),
            Row(
                self.wants,
                Promise(f"200 or 400; a new {self.name} within {BOMB_SECONDS:g} s", answers=BOMB_SECONDS),
                self.explode,
                self.setup,
                cause=HELPER,
            ),
        )

    def _death(self, number: signal.Signals, askers: int) -> Row:
        when = "at rest" if askers == 1 else "under load"
        own = f"a new {self.name} is answered within {FILE_SECONDS[number]:g} s"
        fault = f"{number.name} of the {self.decoder}, {when}"
        return Row(fault, Promise(own, serves=SERVES_SECONDS), partial(self.strike, number), self.setup, askers, HELPER)
