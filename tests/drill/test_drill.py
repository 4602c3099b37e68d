"""The drill sees a violated promise: wrong answers, blame, slow answers and health. Every row states a promise."""

import pytest

from service.recording.explain import RULES
from tests.drill.canary import COMPLETIONS, Answer, Asked, Question
from tests.drill.explained import NOTHING
from tests.drill.row import LoneRow, Promise
from tests.drill.rows import FAMILIES
from tests.drill.stage import canary_problems

ATTACK, FAULT, REFUSING = Promise(), Promise(serves=8.0), Promise(refusals=frozenset({429}))


@pytest.mark.parametrize(
    ("promise", "status", "right", "seconds", "problems"),
    [
        (ATTACK, 200, True, 1.0, []),
        (ATTACK, 200, False, 1.0, ["1 wrong answers, such as 'wheel'"]),
        (FAULT, 200, False, 1.0, ["1 wrong answers, such as 'wheel'"]),
        (ATTACK, 400, False, 1.0, ["good requests got 400"]),
        (FAULT, 400, False, 1.0, ["good requests got 400"]),
        (REFUSING, 429, False, 1.0, []),
        (ATTACK, 503, False, 1.0, ["good requests failed (1 x 503)"]),
        (ATTACK, 0, False, 1.0, ["good requests failed (1 x lost)"]),
        (FAULT, 503, False, 1.0, []),
        (ATTACK, 200, True, 21.0, ["an answer took 21.0 s"]),
        (FAULT, 200, True, 21.0, []),
    ],
)
def test_the_canary_sees_what_a_promise_forbids(
    promise: Promise, status: int, right: bool, seconds: float, problems: list[str]
) -> None:
    asked = Asked(Question(COMPLETIONS, {"prompt": "a"}), Answer(status, "wheel", 0.0, seconds), right)
    assert canary_problems([asked], promise) == problems


def test_every_row_has_a_name_of_its_own_and_states_a_promise() -> None:
    rows = [row for rows in FAMILIES.values() for row in rows]
    assert len({row.fault for row in rows}) == len(rows)
    assert all(map(str, rows))


EXPLAINED = (
    *("Processes", "Streams", "Images", "Audio", "Latent attention", "Limits of the machine", "Steps of the engine"),
    *("Clock", "Pages on disk", "Stored responses", "Several models", "No fault"),
)


@pytest.mark.parametrize("family", EXPLAINED)
def test_every_row_with_a_server_knows_its_cause(family: str) -> None:
    causes = {rule.name for rule in RULES} | {NOTHING}
    for row in FAMILIES[family]:
        assert isinstance(row, LoneRow) or row.cause in causes, row.fault
