"""The spare engine: a process that has imported everything and waits for the message to load its model."""

import asyncio
import logging
import random
from collections.abc import Callable

from service.engine.supervision.connection import EngineConnection, Patience
from service.engine.supervision.process import EngineHandle

log = logging.getLogger("noria.engine")

AFTER_SECONDS = 3.0
"""Seconds between the start of an engine that serves, and of its spare: the first requests have the processor."""
LONGEST_SECONDS = 30.0


def backoff(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row: none after the first, then each time twice as many.

    At most `LONGEST_SECONDS`. Up to half is left out at random, so that many servers do not start at one time.
    """
    longest = min(0.5 * (2 ** min(failures, 16) - 1), LONGEST_SECONDS)
    return longest * random.uniform(0.5, 1.0)


class Spare:
    """At most one spare engine. One that ends is replaced, each time later."""

    def __init__(self, new_engine: Callable[[], EngineHandle], patience: Patience = Patience()) -> None:  # noqa: B008
        self._new_engine = new_engine
        self._patience = patience
        self._connection: EngineConnection | None = None
        self._keeper: asyncio.Task[None] | None = None

    def keep(self) -> None:
        """Start a spare soon, and replace it when it ends. A second call does nothing."""
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name="spare-engine")

    async def take(self) -> EngineConnection | None:
        """Take the spare out; returns None if there is none. `keep` starts the next one."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)
        connection, self._connection = self._connection, None
        return connection

    async def close(self) -> None:
        if (connection := await self.take()) is not None:
            await connection.close()

    async def _keep(self) -> None:
        failures = 0
        while True:
            await asyncio.sleep(AFTER_SECONDS + backoff(failures))
            try:
                await self._run()
            except Exception as error:  # the machine may have no memory for another process
                log.warning("there is no spare engine: %s", error)
            failures += 1

    async def _run(self) -> None:
        """Start a spare and wait for its end. Cancelled, it leaves the spare to `take`."""
        self._connection = connection = EngineConnection(self._new_engine())
        await connection.open()
        reason = await connection.watch(self._patience)
        self._connection = None
        ending = await connection.close()
        log.warning("the spare engine is gone (%s); another one follows", reason or connection.failure or ending)
