"""The choices of one prompt on the wire: one message with one prompt, and each choice ends alone."""

import asyncio
import socket

from model.sampling_params import SamplingParams
from service.engine.client import EngineClient
from service.engine.messages import Abort, LoadModel, Ready, Submit, Wire
from tests.engine.driving import Client
from tests.engine.hosting import with_client
from tests.fakes import EngineThread, FakeRunner, make_info
from tests.waiting import PATIENCE


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

    with_client(lambda: engine, body)


def test_a_message_that_is_refused_ends_all_its_choices() -> None:
    too_long = Submit(1, [1] * 200, SamplingParams(), n=3)
    client = Client(FakeRunner(make_info()), [[too_long, Submit(4, [40], SamplingParams(max_tokens=2))]])
    assert client.finished == {1: "error", 2: "error", 3: "error", 4: "length"}
