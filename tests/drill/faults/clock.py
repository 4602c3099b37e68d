"""The wall clock jumps. The monotonic clock goes on, as on a real machine."""

import time
from functools import partial

from tests.drill.canary import COMPLETIONS, PROMPT
from tests.drill.row import NotPossible, Promise, Row
from tests.drill.stage import Stage
from tests.drill.wire import fetch

DAY = 86_400


def jump(days: int, stage: Stage) -> str:
    """Set the clock of the running server, and see it in an answer."""
    (stage.target.folder / "clock").write_text(f"{days:+d}d")
    time.sleep(2.0)  # it reads the file every second
    created = fetch("POST", stage.target.url + COMPLETIONS, json=PROMPT, timeout=60).json()["created"]
    seen = (created - time.time()) / DAY
    if abs(seen - days) > 0.5:
        raise NotPossible(f"the server's clock did not jump: {seen:+.1f} days")
    return f"its clock is {seen:+.1f} days off"


LIVE_SECONDS = 1.5
"""faketime reads its file once a second, and a thread that waits meanwhile may wake a second late. That is the tool's
doing: the interpreter waits by the monotonic clock, which does not jump."""
ROWS = (
    Row(
        "the clock jumps a day ahead",
        Promise(live=LIVE_SECONDS),
        partial(jump, 1),
        setup="clock",
        askers=6,
        cause="the-clock-jumped",
    ),
    Row(
        "the clock jumps two days back",
        Promise(live=LIVE_SECONDS),
        partial(jump, -1),
        setup="clock",
        askers=6,
        cause="the-clock-jumped",
    ),
)
