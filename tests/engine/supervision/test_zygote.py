"""The zygote and the engines that it forks: real processes."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from service.engine.client import EngineClient
from service.engine.supervision import zygote as supervised
from service.engine.supervision.connection import EngineConnection
from service.engine.supervision.launch import NETWORK, Launched, launch
from service.engine.supervision.process import EngineProcess
from service.engine.supervision.zygote import LONGEST_SECONDS, Zygote, backoff
from service.engine.tape import SharedTape
from tests.engine.driving import expected
from tests.engine.hosting import PARAMS, Hosts, collect, process, until, with_client, zygote
from tests.faults import offspring
from tests.waiting import PATIENCE, children, ended, eventually, named

FAKE = "tests.fakes:create_fake"
THREADED = "tests.engine.supervision.threaded"


def n_threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@pytest.mark.parametrize("module", ["", "tests.fakes", "no.such.module", THREADED])
def test_a_zygote_that_runs_already_forks_the_engine(module: str) -> None:
    """A module that cannot be imported is the runner's problem. After one that starts a thread, none is forked."""
    own = Zygote(launched=(launched := launch(module)))
    engine = EngineProcess(FAKE, own)

    async def body(client: EngineClient) -> None:
        assert len(await collect(client.submit([1, 2, 3], PARAMS))) == PARAMS.max_tokens
        assert own.pid == launched.process.pid
        assert named(launched.process.pid) == "noria-zygote"
        assert engine.pid is not None
        assert named(engine.pid) == "noria-engine"
        assert engine.pid in offspring()
        assert n_threads(launched.process.pid) == 1 + (module == THREADED)

    with_client(lambda: engine, body)
    own.close()
    assert ended(launched.process.pid)


def test_a_zygote_without_a_service_ends() -> None:
    started, sock = launch("")
    sock.close()
    assert started.wait(PATIENCE) == 0


def test_a_zygote_with_the_network_has_one_thread_and_few_descriptors() -> None:
    """A lock that another thread holds at a fork would be held for ever in the engine."""
    started, sock = launch(NETWORK)
    eventually(lambda: named(started.pid) == "noria-zygote", "it has imported everything", 120)
    assert n_threads(started.pid) == 1
    assert "_native.so" in Path(f"/proc/{started.pid}/maps").read_text()
    assert len(list(Path(f"/proc/{started.pid}/fd").iterdir())) == 4, "the standard streams and its socket"
    sock.close()
    assert started.wait(PATIENCE) == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_the_loss_of_a_zygote_costs_no_engine_and_another_one_follows(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervised, "WATCH_SECONDS", 0.02)
    monkeypatch.setattr(supervised, "backoff", lambda failures: 0.0)
    own, restarts = Zygote(), []
    hosts = Hosts(lambda: EngineProcess(FAKE, own))

    async def body(client: EngineClient) -> None:
        first, lost = hosts.pid(0), own.pid
        assert lost is not None
        os.kill(lost, number)
        await until(lambda: own.pid not in (None, lost))
        assert client.state == "ready"
        assert await collect(client.submit([1], PARAMS)) == expected([1], PARAMS)
        assert not restarts
        assert ended(lost)
        os.kill(first, signal.SIGKILL)
        await until(lambda: bool(restarts))
        await client.serving()
        assert await collect(client.submit([1], PARAMS)) == expected([1], PARAMS)
        assert len(hosts.made) == 2

    with_client(hosts, body, on_restart=lambda reason, stacks: restarts.append(1))
    own.close()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_engine_that_a_lost_zygote_should_fork_is_forked_by_the_next_one(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody looks at the zygote in between."""
    monkeypatch.setattr(supervised, "WATCH_SECONDS", 60.0)
    monkeypatch.setattr(supervised, "STOPPED_SECONDS", 0.1)
    launched = launch("")
    eventually(lambda: named(launched.process.pid) == "noria-zygote", "it has imported everything")
    own = Zygote(launched=launched)
    os.kill(launched.process.pid, number)
    hosts = Hosts(lambda: EngineProcess(FAKE, own))

    async def body(client: EngineClient) -> None:
        assert await collect(client.submit([1], PARAMS)) == expected([1], PARAMS)
        assert client.n_lost == 0
        assert len(hosts.made) == 1

    with_client(hosts, body)
    own.close()


def test_where_orphans_cannot_be_adopted_each_engine_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """As under qemu. The zygote that runs already ends."""
    monkeypatch.setattr(supervised, "adopt_orphans", lambda: False)
    own, restarts = Zygote(launched=(launched := launch(""))), []
    hosts = Hosts(lambda: EngineProcess(FAKE, own))

    async def body(client: EngineClient) -> None:
        assert await collect(client.submit([1], PARAMS)) == expected([1], PARAMS)
        assert ended(launched.process.pid)
        os.kill(hosts.pid(0), signal.SIGKILL)
        await until(lambda: bool(restarts))
        await client.serving()
        assert await collect(client.submit([1], PARAMS)) == expected([1], PARAMS)

    with_client(hosts, body, on_restart=lambda *_: restarts.append(1))
    assert all(ended(hosts.pid(n)) for n in range(2))
    own.close()


def test_nobody_waits_for_a_zygote_that_imports_to_end_its_engine() -> None:
    """The engine that is forked later all the same is ended at once."""
    others = {*offspring()}  # this process has adopted what other tests have left
    own = Zygote(launched=(launched := launch("tests.engine.supervision.slow")))

    async def main() -> None:
        connection = EngineConnection(EngineProcess(FAKE, own))
        await connection.open()
        await connection.stop()
        assert await connection.close() == "it was not started"

    asyncio.run(main())
    assert named(launched.process.pid) != "noria-zygote", "it still imports"
    own.close()
    assert ended(launched.process.pid)
    assert "noria-engine" not in map(named, {*offspring()} - others)


def test_an_engine_that_the_system_does_not_allow_was_never_started() -> None:
    ours, theirs = socket.socketpair()
    with subprocess.Popen(["sleep", "60"]) as idle, theirs:
        own = Zygote(launched=Launched(idle, ours))
        engine = EngineProcess(FAKE, own)
        with engine.spawn() as wire:
            for descriptor in socket.recv_fds(theirs, 1, 2)[1]:
                os.close(descriptor)
            with pytest.raises(ConnectionResetError):  # its first message was not read
                wire.recv(1)
        assert engine.wait() == "it cannot be started: Resource temporarily unavailable"
        assert not engine.started
        assert own.pid == idle.pid, "it answers, so it lives"
        own.close()
        assert idle.poll() is not None


def test_the_end_of_an_engine_is_known_and_nothing_is_left_of_it() -> None:
    """Not its own child either, which is adopted."""
    engine = EngineProcess("tests.engine.supervision.threaded:create_with_child", zygote())

    async def body(client: EngineClient) -> None:
        assert engine.pid is not None
        eventually(lambda: children(engine.pid or 0, "sleeping"), "its child runs")
        (child,) = children(engine.pid, "sleeping")
        os.kill(engine.pid, signal.SIGSEGV)
        assert await asyncio.to_thread(engine.wait) == "killed by SIGSEGV"
        assert not {child, engine.pid} & {*offspring()}
        with pytest.raises(ProcessLookupError):
            os.kill(child, 0)

    with_client(Hosts(lambda: engine, process), body)


@pytest.mark.parametrize("state", ["running", "stopped"])
def test_engine_and_zygote_die_with_their_service(state: str) -> None:
    script = (
        "import asyncio, os, signal, sys\n"
        "from service.engine.client import EngineClient\n"
        "from tests.engine.hosting import Hosts, OPTIONS, process, zygote\n"
        "async def main():\n"
        "    hosts = Hosts(process)\n"
        "    await EngineClient(hosts, stall_timeout=60).start(OPTIONS)\n"
        "    for pid in (hosts.pid(0), zygote().pid):\n"
        "        if sys.argv[1] == 'stopped': os.kill(pid, signal.SIGSTOP)\n"
        "        print(pid, flush=True)\n"
        "    await asyncio.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, state], stdout=subprocess.PIPE, text=True) as service:
        assert service.stdout is not None
        found = [int(service.stdout.readline()) for _ in range(2)]
        service.kill()
    for pid in found:
        eventually(partial(ended, pid), f"a {state} process ends with the service")


def test_the_wait_grows_up_to_a_ceiling_however_many_failures() -> None:
    assert backoff(0) == 0
    for failures, longest in ((1, 0.5), (2, 1.5), (3, 3.5), (10, LONGEST_SECONDS), (5000, LONGEST_SECONDS)):
        waits = [backoff(failures) for _ in range(50)]
        assert longest / 2 <= min(waits) < max(waits) <= longest


def test_an_engine_that_hangs_tells_where() -> None:
    """At the watchdog's bite. What it has computed can be read afterwards, with the step that hangs."""
    own, tape = Zygote(launched=launch("tests.fakes")), SharedTape()
    runners = iter(("tests.fakes:create_hanging", FAKE))
    told: list[tuple[str, str]] = []

    async def body(client: EngineClient) -> None:
        assert await collect(client.submit([1, 2], PARAMS)) == expected([1, 2], PARAMS)

    hosts = Hosts(lambda: EngineProcess(next(runners), own, tape=tape))
    with_client(hosts, body, step_timeout=0.5, on_restart=lambda reason, stacks: told.append((reason, stacks)))
    own.close()
    ((reason, stacks),) = told
    assert "no progress" in reason
    assert "in step" in stacks
    assert "noria-engine" not in stacks
    first = min(step[1] for step in tape.steps())
    assert [step[8] is None for step in tape.steps() if step[1] == first].count(True) == 1, "one has not landed"
