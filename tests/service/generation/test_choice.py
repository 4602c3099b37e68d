"""One choice, and the choices of a request, from updates that the test writes."""

import asyncio
from contextlib import aclosing
from typing import Any, cast

from model.batch import TokenLogprob
from model.sampling_params import SamplingParams
from service.access.record import Policy, RequestRecord
from service.engine.client import EngineClient
from service.engine.mailbox import Mailbox
from service.engine.messages import Submit, Update
from service.generation.choice import Choice
from service.generation.generation import Generation
from service.generation.request import Echo, ModelRequest, late_request
from service.generation.usage import Backlog, Meter
from tests.fakes import IntegerTokenizer

PROMPT = [97, 98, 99]


class Metrics:
    """They count nothing."""

    def __getattr__(self, name: str) -> Any:
        return lambda *values: None


def choice(params: SamplingParams, echo: Echo | None = None) -> Choice:
    submit = Submit(0, PROMPT, params)
    record = RequestRecord("r", "POST", "/v1/completions", None, Policy())
    meter = Meter((submit,), Metrics(), record, Backlog())
    mailbox = Mailbox(submit, lambda sequence_id: None)
    return Choice(0, submit, echo, ModelRequest((submit,)), mailbox, IntegerTokenizer(), meter)


def scored(token: int) -> TokenLogprob:
    """A token with three alternatives."""
    return TokenLogprob(token, -1.0, tuple((token + n, -1.0 - n) for n in range(3)))


def test_an_echo_has_as_many_alternatives_as_the_answer() -> None:
    """Its first token has no logprob: no token is before it."""
    one = choice(SamplingParams(max_tokens=1, logprobs=2), Echo("abc", (0, 1, 2)))
    update = Update(0, [100], [scored(100)], finish="length", prompt_logprobs=[scored(98), scored(99)])
    delta = one._absorb(update)
    assert delta.text == "abcd"
    assert [(item.token, item.logprob, item.start) for item in delta.scored] == [
        (97, None, 0),
        (98, -1.0, 1),
        (99, -1.0, 2),
        (100, -1.0, 3),
    ]
    assert [item.top for item in delta.scored[:3]] == [(), scored(98).top[:2], scored(99).top[:2]]


def test_a_choice_without_a_token_has_a_mean() -> None:
    """The time may end a choice before its first token. `best_of` compares it with the others."""
    one = choice(SamplingParams(logprobs=0))
    one._absorb(Update(0, finish="timeout"))
    assert one.mean_logprob == 0.0


def test_choices_are_those_of_all_prompts() -> None:
    submit = Submit(0, PROMPT, SamplingParams(), n=3)
    assert ModelRequest((submit, submit)).n_choices == late_request(2, 3).n_choices == 6


class Sender:
    """The client of an engine: each choice has a mailbox. `closed` are the ids of those that are closed."""

    def __init__(self) -> None:
        self.mailboxes: list[Mailbox] = []
        self.closed: list[int] = []

    def submit_choices(self, submit: Submit, restore: None) -> list[Mailbox]:
        ones = [Submit(sequence_id, submit.prompt, submit.params) for sequence_id in submit.ids]
        self.mailboxes += [Mailbox(one, self.closed.append) for one in ones]
        return self.mailboxes


def test_who_leaves_a_stream_of_several_choices_leaves_no_task_and_no_sequence() -> None:
    async def leave() -> None:
        submit, client = Submit(0, PROMPT, SamplingParams(), n=3), Sender()
        record = RequestRecord("r", "POST", "/v1/completions", None, Policy())
        meter = Meter((submit,), Metrics(), record, Backlog())
        request = ModelRequest((submit,))
        generation = Generation(request, cast(EngineClient, client), IntegerTokenizer(), meter, record)
        await generation.submit()
        for mailbox in client.mailboxes:
            mailbox.put(Update(mailbox.id, [100]))
        async with aclosing(generation.events()) as events:
            await anext(events)
        assert len(asyncio.all_tasks()) > 1
        generation.close()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert client.closed == [0, 1, 2]

    asyncio.run(leave())
