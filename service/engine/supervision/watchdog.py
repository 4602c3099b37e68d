"""The watchdog: it tells when an engine is stopped, silent, or has a sequence that makes no progress."""

import asyncio
from typing import NamedTuple

from model.machine.child import LOADING_SILENCE_SECONDS, SILENCE_SECONDS, STOPPED_SECONDS
from service.engine.supervision.connection import Connection

WATCH_SECONDS = 0.2


class Patience(NamedTuple):
    """How long an engine that is ready may let a sequence wait for progress, and may be silent, in seconds.

    It sends beats even inside a long step, but a busy machine may delay them.
    """

    step: float = 60.0
    silence: float = SILENCE_SECONDS


async def watch(connection: Connection, patience: Patience) -> str | None:
    """Wait until the engine has ended (None), or has to be killed (why). Raises what `take` of its messages raises.

    Delays of this event loop do not count as silence.
    """
    clock = asyncio.get_running_loop().time
    while True:
        before = clock()
        if await connection.ended(within=WATCH_SECONDS):
            return None
        connection.heard += clock() - before - WATCH_SECONDS
        if (reason := _trouble(connection, patience, clock() - connection.heard)) is not None:
            return reason


def _trouble(connection: Connection, patience: Patience, silent: float) -> str | None:
    if silent > STOPPED_SECONDS and connection.engine.stopped():
        return f"the engine process is stopped and has been silent for {silent:.1f} s"
    if silent > (patience.silence if connection.ready else LOADING_SILENCE_SECONDS):
        return f"the engine has been silent for {silent:.1f} s"
    if connection.stalled > patience.step:
        return (
            f"a sequence in the engine has made no progress for {connection.stalled:.1f} s, --step-timeout allows "
            f"{patience.step:g} s; if the machine is slow, raise it or lower --max-step-tokens"
        )
    return None
