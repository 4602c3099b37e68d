"""The choices of one prompt on the wire: one message with one prompt, and each choice ends alone."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator

import pytest

from model.sampling_params import SamplingParams
from service.engine.client import EngineClient
from service.engine.mailbox import Mailbox
from service.engine.messages import Abort, LoadModel, Ready, Submit
from service.engine.wire import Wire
from tests.engine.driving import Client, expected
from tests.fakes import WAITING, EngineThread, FakeRunner, WaitingRunner, make_info
from tests.waiting import PATIENCE

OPTIONS = {"model": "fake", "max_sequences": 8, "max_step_tokens": 32}


class OpenEngine(EngineThread):
    """An engine whose messages the test reads."""

    def __init__(self) -> None:
        super().__init__("")

    def spawn(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        theirs.settimeout(PATIENCE)
        self._wire = self.wire = Wire(theirs)
        self.wire.send(Ready(make_info()))
        return ours

    def wait(self) -> str:
        self.wire.release()
        return "ended"


def with_client(host: EngineThread, body: Callable[[EngineClient], Awaitable[None]]) -> None:
    async def main() -> None:
        client = EngineClient(lambda: host)
        await client.start(OPTIONS)
        try:
            await body(client)
        finally:
            await client.close()

    asyncio.run(main())


async def collect(mailbox: Mailbox) -> list[int]:
    return [token async for update in mailbox for token in update.tokens]


def test_a_prompt_is_sent_once_and_a_choice_is_aborted_alone() -> None:
    engine = OpenEngine()

    async def body(client: EngineClient) -> None:
        before = client.submit([9], SamplingParams())
        mailboxes = client.submit_choices(
            Submit(0, [1, 2, 3], SamplingParams(), n=128, priority=1, cache_salt="s", tenant="t")
        )
        mailboxes[5].close()
        received = [await asyncio.to_thread(engine.wire.receive) for _ in range(4)]
        first = before.id + 1
        assert [mailbox.id for mailbox in mailboxes] == list(range(first, first + 128))
        assert isinstance(received[0], LoadModel)
        assert received[2:] == [Submit(first, [1, 2, 3], SamplingParams(), 0, 1, "s", 128, "t"), Abort(first + 5)]

    with_client(engine, body)


def test_choices_answer_as_alone() -> None:
    async def body(client: EngineClient) -> None:
        params = SamplingParams(max_tokens=20)
        answers = await asyncio.gather(*map(collect, client.submit_choices(Submit(0, [1, 2, 3], params, n=12))))
        assert answers == [expected([1, 2, 3], params, choice) for choice in range(12)]

    with_client(EngineThread("tests.fakes:create_fake"), body)


@pytest.fixture
def waiting() -> Iterator[WaitingRunner]:
    """The runner that all tests of this process share, as if it were new."""
    WAITING.may.clear()
    WAITING.steps.clear()
    yield WAITING
    WAITING.may.clear()
    WAITING.steps.clear()


def test_an_abort_of_any_choice_comes_after_its_grammar(waiting: WaitingRunner) -> None:
    """A thread compiles the grammar meanwhile. An abort that overtook the sequences would be forgotten."""

    async def body(client: EngineClient) -> None:
        params = SamplingParams(max_tokens=4, grammar="g")
        first, *gone = client.submit_choices(Submit(0, [1, 2, 3], params, n=3))
        for mailbox in gone:
            mailbox.close()
        await collect(client.submit([1], SamplingParams(max_tokens=1)))  # the aborts have arrived, too
        waiting.may.set()
        assert await collect(first) == expected([1, 2, 3], params)
        computed = {item.sequence_id for step in waiting.steps for item in step.slices}
        assert not computed & {mailbox.id for mailbox in gone}

    with_client(EngineThread("tests.fakes:create_waiting"), body)


def test_a_message_that_is_refused_ends_all_its_choices() -> None:
    too_long = Submit(1, [1] * 200, SamplingParams(), n=3)
    client = Client(FakeRunner(make_info()), [[too_long, Submit(4, [40], SamplingParams(max_tokens=2))]])
    assert client.finished == {1: "error", 2: "error", 3: "error", 4: "length"}
