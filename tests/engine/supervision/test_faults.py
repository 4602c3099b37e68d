"""Every call by which the service starts, reaches and ends an engine fails once."""

import asyncio
import errno
import os
import signal

import pytest

from model.errors import NoriaError
from service.engine.client import EngineClient
from service.engine.mailbox import EngineDied, EngineUnavailable
from service.engine.supervision import supervisor, zygote
from service.engine.supervision.process import EngineProcess
from service.engine.supervision.zygote import Zygote
from tests.engine.driving import expected
from tests.engine.hosting import OPTIONS, PARAMS, Hosts, collect, thread, until
from tests.faults import descriptors, failing

MAX_RUNS = 60
IN_PROCESSES = {"open", "fork"}
"""Kinds that need an engine process. The others are the same, and faster, with an engine on a thread."""


async def served(client: EngineClient) -> None:
    """Ask until the right answer comes; only what a client gets as a 503 may come before it."""
    for _ in range(5):
        try:
            await client.serving()
            assert await collect(client.submit([1, 2], PARAMS)) == expected([1, 2], PARAMS)
        except (EngineDied, EngineUnavailable):
            continue
        return
    raise AssertionError("there is no answer")


async def run(client: EngineClient, hosts: Hosts, own: Zygote | None) -> None:
    """Start, answer, lose the zygote and every engine, answer again."""
    await client.start(OPTIONS)
    await served(client)
    n_made = len(hosts.made)
    if own is not None and own.pid is not None:
        os.kill(own.pid, signal.SIGKILL)
    for engine in hosts.made:
        engine.kill()
    await until(lambda: len(hosts.made) > n_made)
    await served(client)


async def happens(kind: str, code: int, n: int) -> bool:
    """Whether the Nth call of this kind has failed in a run: then the run was served, or ended in a clear error."""
    with failing(kind, code, n) as fault:
        own = Zygote() if kind in IN_PROCESSES else None
        hosts = Hosts(thread if own is None else lambda: EngineProcess("tests.fakes:create_fake", own))
        client = EngineClient(hosts)
        try:
            await run(client, hosts, own)
        except NoriaError:
            assert fault.happened
            assert client.info is None, "only the first engine may fail"
        finally:
            await client.close()
            if own is not None:
                own.close()
    for engine in hosts.made:
        engine.wait()
    return fault.happened


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("open", errno.EMFILE),
        ("socketpair", errno.EMFILE),
        ("fork", errno.EAGAIN),
        ("send", errno.ENOBUFS),
        ("receive", errno.ECONNRESET),
    ],
)
def test_every_fault_ends_in_an_answer_or_a_clear_error(kind: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (supervisor, zygote):
        monkeypatch.setattr(module, "backoff", lambda failures: 0.0)
    for n in range(1, MAX_RUNS):
        before = descriptors()
        if not asyncio.run(happens(kind, code, n)):
            assert n > 2, "too little of this kind is called"
            return
        assert descriptors() == before, f"call {n} has left a descriptor"
    raise AssertionError(f"after {MAX_RUNS} runs there is still a call that fails")
