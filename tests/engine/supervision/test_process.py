"""The start of an engine process: before its runner is known, with a module to import, with a service that fails."""

from functools import partial

import pytest

from service.engine.client import EngineClient
from service.engine.supervision.process import EngineProcess, Launched, launch
from tests.engine.hosting import PARAMS, collect, with_client
from tests.waiting import PATIENCE


@pytest.mark.parametrize("module", ["", "tests.fakes", "no.such.module"])
def test_a_process_that_runs_already_gets_its_runner(module: str) -> None:
    """A module that cannot be imported is the runner's problem, if it is one."""
    started: list[Launched] = []

    async def body(client: EngineClient) -> None:
        assert len(await collect(client.submit([1, 2, 3], PARAMS))) == PARAMS.max_tokens
        assert engine.pid == started[0].process.pid

    started.append(launch(module))
    engine = EngineProcess("tests.fakes:create_fake", launch=started.copy().pop)
    with_client(lambda: engine, body)


def test_a_process_without_a_service_ends() -> None:
    process, sock = launch()
    sock.close()
    assert process.wait(PATIENCE) == 0


def test_a_process_that_has_ended_is_an_engine_that_has_ended() -> None:
    """Its closed wire says so, as of an engine that ends later."""
    process, sock = launch()
    process.kill()
    process.wait(PATIENCE)
    engine = EngineProcess("tests.fakes:create_fake", launch=partial(Launched, process, sock))
    with engine.spawn() as wire:
        assert wire.recv(1) == b""
    assert engine.wait() == "killed by SIGKILL"
