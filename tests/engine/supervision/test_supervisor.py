"""One engine after the other: what ends the supervision, and what does not."""

import asyncio
import errno
import signal
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from model.errors import NoriaError
from service.engine.client import EngineClient
from service.engine.mailbox import EngineUnavailable
from service.engine.supervision import supervisor
from service.engine.supervision.process import EngineProcess
from tests import fakes
from tests.engine.driving import expected
from tests.engine.hosting import OPTIONS, PARAMS, Hosts, collect, process, thread, until, with_client
from tests.fakes import EngineThread
from tests.waiting import eventually


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "backoff", lambda failures: 0.0)


class Unstartable(EngineThread):
    """An engine for which there is no process."""

    def spawn(self) -> socket.socket:
        raise OSError(errno.EAGAIN, "no more processes")


class Unkillable(EngineThread):
    def kill(self) -> None:
        super().kill()
        raise PermissionError(errno.EPERM, "not allowed")


class Unwaitable(EngineThread):
    def wait(self) -> str:
        super().wait()
        raise ChildProcessError(errno.ECHILD, "no such child")


def unstartable() -> EngineThread:
    return Unstartable("tests.fakes:create_fake")


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("kind", [lambda: process("create_exiting"), lambda: thread("create_broken")])
def test_five_failed_loads_in_a_row_end_the_supervision(kind: Callable[[], EngineProcess]) -> None:
    hosts = Hosts(thread, unstartable, kind, kind, thread, unstartable, kind)

    async def body(client: EngineClient) -> None:
        hosts.made[0].kill()
        await until(lambda: len(hosts.made) == 5)
        await client.serving()
        hosts.made[4].kill()
        with pytest.raises(NoriaError, match=r"^5 engines in a row could not load the model; the last one: "):
            await client.supervised()
        assert len(hosts.made) == 5 + 1 + supervisor.MAX_FAILED_LOADS  # one could not even start
        assert client.n_lost == len(hosts.made), "each is counted once"
        assert client.state == "failed"
        with pytest.raises(EngineUnavailable):
            await client.serving()
        with pytest.raises(EngineUnavailable, match="failed"):
            client.submit([1], PARAMS)

    with_client(hosts, body)


@pytest.mark.usefixtures("at_once")
def test_an_engine_that_cannot_be_started_is_tried_again_without_end() -> None:
    """After 1,024 failures the time to wait was too large a number, and the supervision ended without a word."""
    hosts = Hosts(thread, *[unstartable] * 1100, thread)

    async def body(client: EngineClient) -> None:
        hosts.made[0].kill()
        await until(lambda: len(hosts.made) == 1102)
        await client.serving()
        assert await collect(client.submit([1], PARAMS)) == expected([1], PARAMS)

    with_client(hosts, body)


@pytest.mark.parametrize("kind", [Unkillable, Unwaitable])
def test_an_engine_whose_end_cannot_be_seen_is_replaced(kind: type[EngineThread]) -> None:
    hosts = Hosts(lambda: kind("tests.fakes:create_fake"), thread)

    async def body(client: EngineClient) -> None:
        EngineThread.kill(hosts.made[0])  # type: ignore[arg-type]
        await until(lambda: len(hosts.made) == 2)
        await client.serving()
        assert await collect(client.submit([1], PARAMS)) == expected([1], PARAMS)

    with_client(hosts, body)


def test_an_engine_process_that_does_not_end_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in an uninterruptible wait ignores SIGKILL: a stopped one stands for it here."""
    monkeypatch.setattr("service.engine.supervision.process.END_SECONDS", 0.01)
    engine = process()
    with engine.spawn():
        eventually(lambda: engine.started, "the zygote has forked it")
        assert engine.wait() == "it does not end"
        engine.kill()
    monkeypatch.undo()
    assert engine.wait() == f"killed by {signal.SIGKILL.name}"


@pytest.mark.usefixtures("at_once")
def test_every_new_engine_gets_its_options_anew() -> None:
    """The second engine gets options of a model that is broken, for the third nothing is found."""
    made = []

    async def renew() -> Mapping[str, Any]:
        made.append(1)
        if len(made) == 2:
            raise NoriaError("nothing is found")
        return {**OPTIONS, "model": "broken" if len(made) == 1 else "fake", "max_model_len": 7}

    hosts = Hosts(thread)

    async def main() -> None:
        client = EngineClient(hosts)
        await client.start(OPTIONS, renew)
        assert not made
        length = client.info.max_model_len if client.info else 0
        hosts.made[0].kill()
        await until(lambda: len(made) == 3)
        await client.serving()
        assert client.info is not None
        assert client.info.max_model_len == length
        await client.close()

    asyncio.run(main())


@pytest.mark.usefixtures("at_once")
def test_an_engine_with_other_weights_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = iter(["one", "two"])
    make = fakes.make_info

    def create(*arguments: object, **options: object) -> fakes.FakeRunner:
        info = make(page_size=16, pools=((None, 512),), max_model_len=512)
        return fakes.FakeRunner(replace(info, description={"weights": next(weights, "one")}))

    monkeypatch.setattr(fakes, "create_fake", create)
    hosts = Hosts(thread)

    async def body(client: EngineClient) -> None:
        hosts.made[0].kill()
        await until(lambda: len(hosts.made) > 1)
        await client.serving()
        assert len(hosts.made) == 3
        assert client.info is not None
        assert client.info.description == {"weights": "one"}

    with_client(hosts, body)
