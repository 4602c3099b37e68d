"""The wall clock jumps. The monotonic clock goes on, as on a real machine."""

import time
from functools import partial

from tests.drill.row import Promise, Row
from tests.drill.stage import Stage


def jump(offset: str, stage: Stage) -> str:
    """Set the clock of the running server, and wait until it has read it."""
    (stage.target.folder / "clock").write_text(offset)
    time.sleep(3.0)
    return ""


ROWS = (
    Row("the clock jumps a day ahead", Promise(), partial(jump, "+1d"), setup="clock", askers=6),
    Row("the clock jumps a day back", Promise(), partial(jump, "-1d"), setup="clock", askers=6),
)
