"""Engines under a client: processes and threads with a fake model, and a client that lives as long as a test."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

from model.sampling_params import SamplingParams
from service.engine.client import EngineClient
from service.engine.mailbox import Mailbox
from service.engine.supervision.process import EngineProcess
from service.engine.supervision.zygote import Zygote
from tests.fakes import EngineThread
from tests.waiting import PATIENCE

OPTIONS = {"model": "fake", "max_sequences": 8, "max_step_tokens": 32}
PARAMS = SamplingParams(max_tokens=20)


@cache
def zygote() -> Zygote:
    """The zygote of all engines of this process. It imports no network."""
    return Zygote()


def process(runner: str = "create_fake") -> EngineProcess:
    return EngineProcess(f"tests.fakes:{runner}", zygote())


def thread(runner: str = "create_fake") -> EngineThread:
    return EngineThread(f"tests.fakes:{runner}")


async def collect(mailbox: Mailbox) -> list[int]:
    return [token async for update in mailbox for token in update.tokens]


def with_client(
    host: Callable[[], EngineProcess],
    body: Callable[[EngineClient], Awaitable[None]],
    model: str = "fake",
    **settings: Any,
) -> None:
    async def main() -> None:
        client = EngineClient(host, **settings)
        await client.start({**OPTIONS, "model": model})
        try:
            await body(client)
        finally:
            await client.close()

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        await asyncio.sleep(0.02)


class Hosts:
    """A factory of engines that keeps those it has made."""

    def __init__(self, *kinds: Callable[[], EngineProcess]) -> None:
        """The last of `kinds` makes all further engines, too."""
        self.made: list[EngineProcess] = []
        self._kinds = kinds

    def __call__(self) -> EngineProcess:
        self.made.append(self._kinds[min(len(self.made), len(self._kinds) - 1)]())
        return self.made[-1]

    def pid(self, number: int) -> int:
        """The process id of the engine with this number, the first is 0."""
        engine = self.made[number]
        assert engine.pid is not None
        return engine.pid
