"""Every call by which the service starts, reaches and ends an engine fails once."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from model.errors import NoriaError
from service.engine.client import EngineClient
from service.engine.mailbox import EngineDied, EngineUnavailable
from service.engine.supervision import spare, supervisor
from tests.engine.driving import expected
from tests.engine.faults import KINDS, failing
from tests.engine.hosting import OPTIONS, PARAMS, Hosts, collect, process, until
from tests.waiting import ended

MAX_RUNS = 60


def descriptors() -> set[str]:
    """The open descriptors of this process, and what they are."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        try:
            found.add(f"{path.name} {path.readlink()}")
        except OSError:  # that of this directory
            continue
    return found


async def served(client: EngineClient) -> None:
    """Ask until the right answer comes; only the errors that a client gets as a 503 may come before it."""
    for _ in range(10):
        try:
            await client.serving()
            answer = await collect(client.submit([1, 2], PARAMS))
        except (EngineDied, EngineUnavailable):
            continue
        assert answer == expected([1, 2], PARAMS)
        return
    raise AssertionError("there is no answer")


async def scenario(hosts: Hosts, kill: Callable[[int], None]) -> None:
    """Start, answer, lose the engine, answer again, stop."""
    client = EngineClient(hosts, spare=True)
    try:
        await client.start(OPTIONS)
        await served(client)
        restarted = len(hosts.made)
        kill(0)
        await until(lambda: client.state != "ready" or len(hosts.made) > restarted)
        await served(client)
    finally:
        await client.close()


@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_ends_in_an_answer_or_a_clear_error(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "backoff", lambda failures: 0.0)
    monkeypatch.setattr(spare, "backoff", lambda failures: 0.0)
    monkeypatch.setattr(spare, "AFTER_SECONDS", 0.0)
    for n in range(1, MAX_RUNS):
        failed = asyncio.run(run_once(kind, n))
        if not failed:
            assert n > 1, "nothing of this kind is called"
            return
    raise AssertionError(f"after {MAX_RUNS} runs there is still a call that fails")
