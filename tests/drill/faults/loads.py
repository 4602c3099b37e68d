"""No faults: a server at work, a slow one and a full one. `noria explain` must not invent a cause."""

import itertools
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event, Thread

from tests.drill import explained
from tests.drill.canary import COMPLETIONS, Question, ask
from tests.drill.explained import NOTHING
from tests.drill.faults.limits import control_group
from tests.drill.processes import send
from tests.drill.row import Promise, Row
from tests.drill.stage import Stage

WORK_SECONDS = 8.0
LIMITED = "the-processor-is-limited"
PULSE_SECONDS = 0.05
SLOW = Promise(answers=60.0, live=None)


def works(stage: Stage) -> str:
    """Let the canary work."""
    time.sleep(WORK_SECONDS)
    return ""


@contextmanager
def pulsing(pids: list[int]) -> Iterator[None]:
    """Half a core, emulated: the processes are stopped half of the time."""
    done = Event()

    def pulse() -> None:
        for number in itertools.cycle((signal.SIGSTOP, signal.SIGCONT)):
            if done.is_set() and number == signal.SIGSTOP:
                return
            for pid in pids:
                send(pid, number)
            time.sleep(PULSE_SECONDS)

    thread = Thread(target=pulse)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def slow(stage: Stage) -> str:
    with pulsing([stage.target.pid, stage.target.find("engine").pid]):
        return works(stage)


def limited(stage: Stage) -> str:
    """Half a core by a control group."""
    pids = [process.pid for process in stage.target.processes()]
    with control_group("cpu", ("cpu.cfs_quota_us", "50000"), pids):
        begun = time.time()
        seen = works(stage)
        stage.said = explained.ask(stage.target, LIMITED, begun)
        return seen


def full(stage: Stage) -> str:
    """Send four times as many requests as may run."""
    question = Question(COMPLETIONS, {"prompt": "Count:", "max_tokens": 120, "ignore_eos": True})
    with ThreadPoolExecutor(64) as pool:
        statuses = [answer.status for answer in pool.map(lambda _: ask(stage.target.url, question), range(128))]
    return f"{statuses.count(200)} of {len(statuses)} were answered"


ROWS = (
    Row("none: a server at work", SLOW, works, askers=6, cause=NOTHING),
    Row("none: a server that runs half of the time", SLOW, slow, askers=6, cause=NOTHING),
    Row("a limit of half a core", SLOW, limited, askers=6, cause=LIMITED),
    Row("none: 128 requests where 16 may run", SLOW, full, cause="as-many-run-as-may"),
)
