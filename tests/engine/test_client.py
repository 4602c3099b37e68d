"""The engine from the service's side: real processes and threads, and a fake model."""

import asyncio
import os
import signal
import threading
from collections.abc import Callable

import pytest

from model.errors import NoriaError
from model.sampling_params import SamplingParams
from service.engine.client import EngineClient
from service.engine.mailbox import EngineUnavailable
from service.engine.supervision.process import EngineProcess
from tests.engine.driving import expected
from tests.engine.hosting import OPTIONS, PARAMS, Hosts, collect, process, thread, until, with_client
from tests.fakes import HURRY, WAITING, EngineThread, FakeRunner


@pytest.mark.parametrize("host", [process, thread])
def test_sequences_together_answer_as_alone(host: Callable[[], EngineProcess]) -> None:
    async def body(client: EngineClient) -> None:
        prompts = [list(range(1, 3 + 7 * n)) for n in range(12)]
        answers = await asyncio.gather(*(collect(client.submit(prompt, PARAMS)) for prompt in prompts))
        assert answers == [expected(prompt, PARAMS) for prompt in prompts]
        await until(lambda: client.stats.running == 0)
        assert client.stats.pools[0].held == 0
        assert client.state == "ready"

    with_client(host, body)


def test_others_are_served_while_a_grammar_is_compiled_and_an_abort_comes_after_it() -> None:
    async def body(client: EngineClient) -> None:
        constrained = SamplingParams(max_tokens=4, grammar="g")
        gone, other = client.submit([1, 2, 3], constrained), client.submit([4, 5], constrained)
        plain = SamplingParams(max_tokens=4)
        assert await collect(client.submit([1, 2, 3], plain)) == expected([1, 2, 3], plain)
        gone.close()
        await collect(client.submit([1], plain))  # messages arrive in order: with its answer, the abort has arrived
        WAITING.may.set()
        assert await collect(other) == expected([4, 5], constrained)
        await until(lambda: client.stats.running == 0)
        assert [item.sequence_id for step in WAITING.steps for item in step.slices if item.sequence_id == gone.id] == []

    with_client(lambda: EngineThread("tests.fakes:create_waiting"), body)


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError(), OSError(24, "no more")])
def test_a_grammar_that_cannot_be_prepared_does_not_keep_its_sequence(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither where `prepare` raises, nor where the system allows no more threads at the first grammar."""

    def refuse(*arguments: object) -> None:
        raise error

    async def body(client: EngineClient) -> None:
        constrained = SamplingParams(max_tokens=4, grammar="g")
        with monkeypatch.context() as patch:
            patch.setattr(FakeRunner, "prepare", refuse)
            patch.setattr(threading.Thread, "start", refuse)
            assert await collect(client.submit([4, 5], constrained)) == expected([4, 5], constrained)

    with_client(thread, body)


def test_an_engine_that_is_unloaded_while_it_loads_stays_unloaded() -> None:
    """Whatever it says while it ends. Another one may follow."""

    async def main() -> None:
        client = EngineClient(thread)
        loading = asyncio.create_task(client.start({**OPTIONS, "model": "large"}))
        await until(lambda: client.state == "loading")
        unloading = asyncio.create_task(client.unload())
        await until(lambda: client.state == "unloaded")
        HURRY.set()
        await asyncio.gather(loading, unloading)
        assert (client.state, client.stage, client.info) == ("unloaded", "unloaded", None)
        with pytest.raises(EngineUnavailable):
            client.submit([1, 2, 3], PARAMS)
        await client.start(OPTIONS)
        assert await collect(client.submit([1, 2, 3], PARAMS)) == expected([1, 2, 3], PARAMS)
        await client.close()

    try:
        asyncio.run(main())
    finally:
        HURRY.clear()


def test_closing_a_mailbox_aborts_the_sequence() -> None:
    async def body(client: EngineClient) -> None:
        mailbox = client.submit([1, 2, 3], SamplingParams(max_tokens=400))
        first = await anext(mailbox)
        assert first.admitted is not None
        assert first.admitted.cached == 0
        mailbox.close()
        mailbox.close()
        await until(lambda: client.stats.running == 0)
        assert client.stats.pools[0].held == 0

    with_client(thread, body, model="slow")


def test_updates_are_merged_while_the_reader_is_away() -> None:
    async def body(client: EngineClient) -> None:
        mailbox = client.submit([1, 2, 3], PARAMS)
        await until(lambda: client.stats.queried_tokens == 3 and client.stats.running == 0)
        updates = [update async for update in mailbox]
        assert len(updates) == 1
        assert list(updates[0].tokens) == expected([1, 2, 3], PARAMS)
        assert updates[0].finish == "length"

    with_client(thread, body)


def test_while_an_engine_is_replaced_nobody_can_look_and_requests_wait() -> None:
    hosts = Hosts(process)

    async def body(client: EngineClient) -> None:
        os.kill(hosts.pid(0), signal.SIGKILL)
        await until(lambda: client.state == "restarting")
        with pytest.raises(EngineUnavailable, match="restarting"):
            await client.look()
        assert await collect(client.submit([1], PARAMS)) == expected([1], PARAMS)
        assert len(hosts.made) == 2

    with_client(hosts, body, model="slow")


def test_sigterm_is_left_to_the_service() -> None:
    """Systemd signals all processes of a unit; the engine must not die before the service has drained."""
    hosts = Hosts(process)

    async def body(client: EngineClient) -> None:
        mailbox = client.submit([1], SamplingParams(max_tokens=30))
        await anext(mailbox)
        os.kill(hosts.pid(0), signal.SIGTERM)
        await collect(mailbox)
        assert len(hosts.made) == 1

    with_client(hosts, body, model="slow")


def test_a_fault_in_the_service_itself_does_not_end_supervision() -> None:
    faults = iter([RuntimeError("a fault in the metrics")])

    def on_report(report: object) -> None:
        if client_is_ready and (fault := next(faults, None)):
            raise fault

    client_is_ready: list[bool] = []

    async def main() -> None:
        client = EngineClient(thread, on_report=on_report)
        await client.start(OPTIONS)
        client_is_ready.append(True)
        assert await collect(client.submit([1], PARAMS)) == expected([1], PARAMS)
        assert client.n_lost == 1
        await client.close()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("host", "model", "message"),
    [
        (process, "broken", "found nothing at 'broken', expected a model"),
        (thread, "broken", "found nothing at 'broken', expected a model"),
        (process, "crash", "cannot be loaded: RuntimeError: the fake model cannot be built"),
        (lambda: process("create_exiting"), "fake", r"the engine ended while loading the model \("),
    ],
)
def test_the_first_load_that_fails_is_an_error_for_the_caller(
    host: Callable[[], EngineProcess], model: str, message: str
) -> None:
    async def main() -> None:
        client = EngineClient(host)
        with pytest.raises(NoriaError, match=message):
            await client.start({**OPTIONS, "model": model})
        assert client.state == "failed"
        await client.close()

    asyncio.run(main())


def test_a_stage_is_logged_once_whatever_it_counts(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        client = EngineClient(thread)
        for number in range(1, 4):
            client.note(f"capturing CUDA graph {number} of 3", number / 3)
        assert (client.stage, client.progress) == ("capturing CUDA graph 3 of 3", 1.0)
        client.note("warming up", 0.0)

    with caplog.at_level("INFO", "noria.engine"):
        asyncio.run(body())
    stages = [record.fields["stage"] for record in caplog.records]  # type: ignore[attr-defined]
    assert stages == ["capturing CUDA graph 1 of 3", "warming up"]
