"""Adapters on their way to the engine: callers that go away, engines that die, files that change."""

import asyncio
import os
import threading
from collections.abc import Collection
from pathlib import Path

import pytest

from model.batch import StepBatch, StepOutput
from model.errors import ModelError
from model.sampling_params import SamplingParams
from service.engine.client import EngineClient
from service.engine.mailbox import EngineDied, EngineUnavailable
from tests.engine.driving import expected
from tests.engine.hosting import PARAMS, Hosts, collect, process, until, with_client
from tests.fakes import EngineThread, FakeAdapters, WaitingRunner, make_info, shade


def test_a_load_whose_caller_has_gone_is_undone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = WaitingRunner(make_info(page_size=16, pools=((None, 512),), max_model_len=512))
    monkeypatch.setattr(runner, "may", threading.Event(), raising=False)
    monkeypatch.setattr("tests.fakes.WAITING", runner)

    async def body(client: EngineClient) -> None:
        constrained = client.submit([1, 2], SamplingParams(max_tokens=2, grammar="g"))
        load = asyncio.create_task(client.load_adapter(1, str(tmp_path)))  # behind the grammar, which takes its time
        await asyncio.sleep(0)
        load.cancel()
        await asyncio.gather(load, return_exceptions=True)
        runner.may.set()
        await collect(constrained)
        await client.load_adapter(2, str(tmp_path))
        await collect(client.submit([1], PARAMS))  # the unloading came before it
        assert [*runner.adapters] == [2]

    with_client(lambda: EngineThread("tests.fakes:create_waiting"), body)


def test_an_engine_that_dies_fails_the_load_and_a_later_one_does_not_know_it(tmp_path: Path) -> None:
    hosts = Hosts(process)

    async def body(client: EngineClient) -> None:
        await client.load_adapter(1, str(tmp_path))
        client.adapters = lambda: [(1, str(tmp_path))]
        os.kill(hosts.pid(0), 9)
        with pytest.raises(EngineDied):
            await client.load_adapter(2, str(tmp_path))
        with pytest.raises(EngineUnavailable):
            await client.load_adapter(3, str(tmp_path))
        await until(lambda: client.state == "ready")
        adapted = expected([7], PARAMS, shade(str(tmp_path)))
        assert await collect(client.submit([7], PARAMS, adapter=1)) == adapted
        assert await collect(client.submit([7], PARAMS, adapter=2)) == []

    with_client(hosts, body)


class ForgetfulAdapters(FakeAdapters):
    """Adapters that have left the memory. One is read again when the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.may = threading.Event()
        self.present: set[int] = set()
        self.asked = 0

    def has(self, number: int) -> bool:
        self.asked += 1
        return number in self.present

    def read_again(self, number: int, running: Collection[int]) -> None:
        self.may.wait(30)
        if number not in self:
            raise ModelError("gone")
        self.present.add(number)


class ForgetfulRunner(WaitingRunner):
    """A runner with such adapters."""

    def __init__(self) -> None:
        super().__init__(make_info(page_size=16, pools=((None, 512),), max_model_len=512))
        self.adapters: ForgetfulAdapters = ForgetfulAdapters()
        self.waited = False

    def idle(self) -> bool:
        self.waited |= bool(self.adapters.asked) and not self.adapters.may.is_set()
        return super().idle()

    def step(self, batch: StepBatch) -> StepOutput:
        assert self.adapters.present.issuperset({item.adapter for item in batch.slices} & self.adapters.keys())
        return super().step(batch)


def test_others_are_served_while_an_adapter_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = ForgetfulRunner()
    monkeypatch.setattr("tests.fakes.WAITING", runner)

    async def body(client: EngineClient) -> None:
        await client.load_adapter(1, str(tmp_path))
        adapted, unknown = client.submit([7], PARAMS, adapter=1), client.submit([7], PARAMS, adapter=9)
        assert await collect(client.submit([1, 2], PARAMS)) == expected([1, 2], PARAMS)
        await until(lambda: runner.waited)  # the loop waits for messages
        runner.adapters.may.set()
        assert await collect(adapted) == expected([7], PARAMS, shade(str(tmp_path)))
        assert await collect(unknown) == []
        assert runner.adapters.asked == 2, "each was read once"

    with_client(lambda: EngineThread("tests.fakes:create_waiting"), body)
