"""Sequences outlive their engines, which are threads and processes with a fake model."""

import asyncio
import os
import signal
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from model.media import MediaSpan
from model.sampling_params import SamplingParams
from service.engine.client import EngineClient
from service.engine.mailbox import EngineDied, Mailbox
from service.engine.messages import AGAIN, Submit, Update
from service.engine.submitted import Submitted
from tests.engine.driving import expected
from tests.engine.hosting import PARAMS, Hosts, collect, process, thread, until, with_client
from tests.fakes import create_broken

LONG = SamplingParams(max_tokens=60)


async def begun(mailboxes: list[Mailbox]) -> list[list[int]]:
    """The first tokens of each."""
    return [list((await anext(mailbox)).tokens) for mailbox in mailboxes]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV])
def test_sequences_go_on_after_the_death_of_their_process(number: signal.Signals) -> None:
    hosts = Hosts(process)

    async def body(client: EngineClient) -> None:
        prompts = [[n + 1] * (5 * n + 1) for n in range(6)]
        mailboxes = [client.submit(prompt, LONG) for prompt in prompts]
        first = await begun(mailboxes)
        late = client.submit([9], PARAMS)  # of which nothing was computed
        os.kill(hosts.pid(0), number)
        rest = await asyncio.gather(*map(collect, mailboxes))
        assert [[*a, *b] for a, b in zip(first, rest, strict=True)] == [expected(prompt, LONG) for prompt in prompts]
        assert await collect(late) == expected([9], PARAMS)
        assert len(hosts.made) == 2
        await until(lambda: client.stats.running == 0)
        assert client.stats.pools[0].held == 0

    with_client(hosts, body, model="slow")


def test_each_choice_goes_on_where_it_was() -> None:
    hosts, counted = Hosts(thread), []

    async def body(client: EngineClient) -> None:
        mailboxes = client.submit_choices(Submit(0, [1, 2, 3], LONG, choice=4, n=3))
        first = await begun(mailboxes)
        mailboxes[1].close()
        hosts.made[0].kill()
        rest = await asyncio.gather(collect(mailboxes[0]), collect(mailboxes[2]))
        answers = [[*first[0], *rest[0]], [*first[2], *rest[1]]]
        assert answers == [expected([1, 2, 3], LONG, choice) for choice in (4, 6)]
        assert len(counted) == 2, "the one that was closed does not go on"

    with_client(hosts, body, model="slow", on_continue=lambda: counted.append(1))


def test_facts_of_the_prompt_come_once() -> None:
    """The engine dies in the middle of a prompt of four steps, and again in the middle of the answer."""
    hosts = Hosts(thread)
    prompt = [1 + n % 7 for n in range(100)]
    params = SamplingParams(max_tokens=20, prompt_logprobs=0, return_progress=True)

    async def body(client: EngineClient) -> None:
        mailbox, updates = client.submit(prompt, params), []
        async for update in mailbox:
            updates.append(update)
            if len(updates) == 1:
                hosts.made[0].kill()
            if len(mailbox.output) == 3:
                hosts.made[1].kill()
        assert len(hosts.made) == 3
        assert [item.token for update in updates for item in update.prompt_logprobs] == prompt[1:]
        assert [token for update in updates for token in update.tokens] == expected(prompt, params)
        reports = [update.processed for update in updates if update.processed is not None]
        assert reports == sorted({*reports})
        assert reports[-1] == len(prompt)
        assert [update.admitted is not None for update in updates] == [True] + [False] * (len(updates) - 1)

    with_client(hosts, body, model="slow")


@pytest.mark.parametrize("params", [PARAMS, SamplingParams(max_tokens=0, embed="mean")])
def test_a_report_that_was_lost_is_computed_again(params: SamplingParams) -> None:
    """The service's end fails at the first report, so nothing of the sequences was delivered."""
    faults = iter([RuntimeError("a fault in the metrics")])
    hosts, found = Hosts(thread), []

    def on_report(report: object) -> None:
        if found and (fault := next(faults, None)):
            raise fault

    async def body(client: EngineClient) -> None:
        found.append(client)
        updates = [update async for update in client.submit([4, 5, 6], params)]
        assert [token for update in updates for token in update.tokens] == expected([4, 5, 6], params)
        assert len(hosts.made) == 2
        if params.embed:
            assert updates[-1].embedding == (5.0, 1.0, 1.0)

    with_client(hosts, body, on_report=on_report)


def test_one_that_loses_engine_after_engine_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.engine.submitted.MAX_LOST", 2)
    hosts = Hosts(thread)

    async def body(client: EngineClient) -> None:
        mailbox = client.submit([7], LONG)
        await begun([mailbox])
        for n_lost in range(1, 4):
            hosts.made[-1].kill()
            await until(lambda n_lost=n_lost: client.n_lost == n_lost and client.state == "ready")  # type: ignore[misc]
        with pytest.raises(EngineDied):
            await collect(mailbox)
        assert mailbox.output == expected([7], LONG)[: len(mailbox.output)]
        await until(lambda: client.state == "ready")
        assert await collect(client.submit([1], PARAMS)) == expected([1], PARAMS)

    with_client(hosts, body, model="slow")


def test_without_continues_only_those_go_on_of_which_the_client_has_nothing() -> None:
    hosts = Hosts(thread)

    async def body(client: EngineClient) -> None:
        has_some, has_none = client.submit([1], LONG), client.submit([2], LONG)
        first = await begun([has_some, has_none])
        has_some.sent = True
        hosts.made[0].kill()
        assert [*first[1], *await collect(has_none)] == expected([2], LONG)
        with pytest.raises(EngineDied):
            await collect(has_some)

    with_client(hosts, body, model="slow", continues=False)


async def lose(client: EngineClient, hosts: Hosts) -> None:
    hosts.made[-1].kill()
    await until(lambda: client.state == "restarting")


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> None:
    """No next engine comes."""
    monkeypatch.setattr("service.engine.supervision.supervisor.backoff", lambda failures: 60.0)


@pytest.mark.usefixtures("held")
def test_the_wait_for_the_next_engine_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.engine.submitted.WAIT_SECONDS", 0.1)
    hosts = Hosts(thread)

    async def body(client: EngineClient) -> None:
        mailbox = client.submit([1], LONG)
        await begun([mailbox])
        await lose(client, hosts)
        assert mailbox.waits
        with pytest.raises(EngineDied):
            await collect(mailbox)

    with_client(hosts, body, model="slow")


@pytest.mark.usefixtures("held")
def test_one_that_waits_can_end() -> None:
    hosts = Hosts(thread)

    async def body(client: EngineClient) -> None:
        late, failed = mailboxes = [client.submit([1], LONG) for _ in range(2)]
        await begun(mailboxes)
        await lose(client, hosts)
        late.expire()
        failed.fail(KeyError("mine"))
        assert [update.finish async for update in late][-1] == "timeout"
        with pytest.raises(KeyError, match="mine"):
            await collect(failed)

    with_client(hosts, body, model="slow")


@pytest.mark.usefixtures("held")
def test_the_end_of_the_client_fails_those_that_wait() -> None:
    hosts, waiting = Hosts(thread), []

    async def body(client: EngineClient) -> None:
        mailbox = client.submit([1], LONG)
        await begun([mailbox])
        await lose(client, hosts)
        waiting.append(asyncio.create_task(collect(mailbox)))

    async def main() -> None:
        client = EngineClient(hosts)
        await client.start({"model": "slow", "max_sequences": 8, "max_step_tokens": 32})
        await body(client)
        await client.close()
        with pytest.raises(EngineDied):
            await waiting[0]

    asyncio.run(main())


def test_a_supervision_that_gives_up_fails_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.engine.supervision.supervisor.backoff", lambda failures: 0.0)
    hosts = Hosts(thread)

    async def body(client: EngineClient) -> None:
        mailbox = client.submit([1], LONG)
        await begun([mailbox])
        monkeypatch.setattr("tests.fakes.create_fake", create_broken)
        hosts.made[0].kill()
        with pytest.raises(EngineDied):
            await collect(mailbox)
        await until(lambda: client.state == "failed")

    with_client(hosts, body, model="slow")


def test_an_engine_that_dies_while_it_loads_counts_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.engine.supervision.supervisor.backoff", lambda failures: 0.0)
    monkeypatch.setattr("service.engine.submitted.MAX_LOST", 1)
    broken = partial(thread, "create_broken")
    hosts = Hosts(thread, broken, broken, thread)

    async def body(client: EngineClient) -> None:
        mailbox = client.submit([1], LONG)
        first = await begun([mailbox])
        hosts.made[0].kill()
        assert [*first[0], *await collect(mailbox)] == expected([1], LONG)
        assert len(hosts.made) == 4

    with_client(hosts, body, model="slow")


def test_what_is_submitted_between_two_engines_waits_for_the_second() -> None:
    """Its body, images or audio were being decoded when the first one died."""
    hosts = Hosts(thread)

    async def body(client: EngineClient) -> None:
        hosts.made[0].kill()
        while client.state == "ready":  # noqa: ASYNC110 - the next engine serves soon
            await asyncio.sleep(0)
        mailboxes = client.submit_choices(Submit(0, [1, 2], PARAMS, n=2))
        closed = client.submit([3], PARAMS)
        closed.close()
        found = await asyncio.gather(*map(collect, mailboxes))
        assert found == [expected([1, 2], PARAMS, choice) for choice in range(2)]
        assert client.state == "ready"
        await until(lambda: client.stats.running == 0)

    with_client(hosts, body)


@pytest.mark.usefixtures("held")
def test_the_wait_is_as_long_as_loads_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """A load takes longer than the least wait."""
    monkeypatch.setattr("service.engine.submitted.WAIT_SECONDS", 0.01)
    clock = iter([100.0, 100.5, 200.0])
    monkeypatch.setattr("service.engine.client.time", SimpleNamespace(monotonic=lambda: next(clock)))
    hosts = Hosts(thread)

    async def body(client: EngineClient) -> None:
        mailbox = client.submit([1], LONG)
        await begun([mailbox])
        await lose(client, hosts)
        lost = asyncio.get_running_loop().time()
        with pytest.raises(EngineDied):
            await collect(mailbox)
        assert asyncio.get_running_loop().time() - lost > 1.0, "three loads of half a second"

    with_client(hosts, body, model="slow")


# Sequences whose images or audio the service does not hold


class Wire:
    """What the engine would get, and a file that is decoded as often as the engine needs it."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.n_decoded = 0
        self.submitted = Submitted(self.sent.append, lambda: None)
        self.whole = Submit(5, [1, 2], LONG, media=(MediaSpan(0, 1, 1, "d"),), inputs=b"pixels", n=2)

    async def restore(self) -> bytes:
        self.n_decoded += 1
        await asyncio.sleep(0)
        if self.n_decoded == 3:
            raise KeyError("the process that decodes is gone")
        return b"pixels"


def test_inputs_are_with_the_engine_alone_and_are_decoded_again_for_the_next_one() -> None:
    async def main() -> None:
        wire = Wire()
        first, second = wire.submitted.submit(wire.whole, wire.restore)
        assert wire.sent == [wire.whole]
        assert first.request.inputs == second.request.inputs == b""
        wire.submitted.deliver([Update(5, (7,)), Update(6, (8, 9))])
        wire.submitted.deliver([Update(6, finish=AGAIN)])  # the engine has preempted the second choice
        await asyncio.sleep(0.01)
        again = replace(wire.whole, id=6, choice=1, n=1, output=[8, 9])
        assert wire.sent[1:] == [again]
        wire.submitted.lose_engine(0.1)
        wire.submitted.go_on((0,))
        await asyncio.sleep(0.01)
        assert wire.sent[2:] == [replace(wire.whole, n=1, output=[7]), again]
        wire.submitted.deliver([Update(5, finish=AGAIN), Update(6, (1,), finish="length")])
        with pytest.raises(KeyError, match="decodes is gone"):
            await collect(first)
        assert await collect(second) == [8, 9, 1]
        assert wire.n_decoded == 3, "choices that go on together share a decoding"

    asyncio.run(main())


def test_what_is_closed_or_loses_its_engine_while_it_is_decoded_is_not_submitted() -> None:
    async def main() -> None:
        wire = Wire()
        first, second = wire.submitted.submit(wire.whole, wire.restore)
        wire.submitted.deliver([Update(5, finish=AGAIN), Update(6, finish=AGAIN)])
        await asyncio.sleep(0)
        first.close()
        wire.submitted.lose_engine(0.1)
        await asyncio.sleep(0.01)
        assert [message for message in wire.sent if isinstance(message, Submit)] == [wire.whole]
        assert second.waits
        wire.submitted.fail()

    asyncio.run(main())
