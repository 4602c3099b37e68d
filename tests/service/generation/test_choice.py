"""One choice, from updates that the test writes."""

from typing import Any

from model.batch import TokenLogprob
from model.sampling_params import SamplingParams
from service.access.record import Policy, RequestRecord
from service.engine.mailbox import Mailbox
from service.engine.messages import Submit, Update
from service.generation.choice import Choice
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
