"""Steps of the engine that fail. The server's runner has faults on demand: see `tests/drill/faulty.py`."""

from functools import partial

from tests.drill.canary import COMPLETIONS, Question, ask
from tests.drill.faulty import ALLOCATE, POISON, RAISE
from tests.drill.row import SERVES_SECONDS, Promise, Row, check
from tests.drill.stage import Stage

LOAD = 6


def victim(token: int) -> Question:
    """A request that has a token of trouble at the end of its prompt."""
    prompt = [100 + n for n in range(20)]
    return Question(COMPLETIONS, {"prompt": [*prompt, token], "max_tokens": 12, "temperature": 0})


def alone_fails(token: int, stage: Stage) -> str:
    """Send the victim three times: it gets a 5xx, and only it."""
    restarts = stage.target.metric("noria_engine_restarts_total")
    statuses = [ask(stage.target.url, victim(token)).status for _ in range(3)]
    stage.mark()
    check(all(status >= 500 for status in statuses), f"the request itself got {statuses}")
    more = stage.target.metric("noria_engine_restarts_total") - restarts
    check(not more, f"{more:g} engines were replaced")
    return f"the request itself got {statuses}"


def breaks(steps: int, stage: Stage) -> str:
    """Let the Nth step from now on raise: whoever is in it gets a 5xx, or its answer after all."""
    restarts = stage.target.metric("noria_engine_restarts_total")
    answer = ask(stage.target.url, victim(RAISE + steps))
    stage.mark()
    check(not 400 <= answer.status < 500, f"the request itself got {answer.status}")
    more = stage.target.metric("noria_engine_restarts_total") - restarts
    check(not more, f"{more:g} engines were replaced")
    return f"the request itself got {answer.status or 'no answer'}"


OWN = "only the request itself fails, with a 5xx; the engine is kept"
ALONE = "a-request-failed-alone"
ROWS = (
    Row("a row that is not a number", Promise(OWN), partial(alone_fails, POISON), "faulty runner", LOAD, ALONE),
    Row(
        "an allocation of one request fails", Promise(OWN), partial(alone_fails, ALLOCATE), "faulty runner", LOAD, ALONE
    ),
    *(
        Row(
            f"step {n} after a request's start raises",
            Promise("no 4xx; the engine is kept", serves=SERVES_SECONDS),
            partial(breaks, n),
            "faulty runner",
            LOAD,
            ALONE if n == 1 else "a-step-failed",
        )
        for n in (1, 2, 5)
    ),
)
