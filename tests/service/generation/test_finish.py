"""The table of finish reasons, against all that must have a word for each."""

import re
from pathlib import Path

import pytest

import service
from model.sampling_params import SamplingParams
from service.access.record import Policy, RequestRecord
from service.api.anthropic.shape import MessageShape
from service.api.openai.answer_types import FinishReason
from service.api.responses.body import ResponsesBody
from service.api.responses.shape import ResponseShape
from service.commands.chat.display import cut_note
from service.engine.messages import FINISHES as OF_SEQUENCES
from service.engine.scheduling.sequence import ending
from service.generation.choice import Delta
from service.generation.finish import CALLS, FINISHES
from service.generation.usage import Usage
from service.observe.model_metrics import OUTCOMES
from service.schema.tools import AllowedCalls

PAGE = Path(service.__file__).parent / "page/assets/chat/ending.js"
COMPLETE = {"stop", "tool_calls"}


def test_every_reason_of_a_sequence_has_a_row_and_an_outcome() -> None:
    assert [*OF_SEQUENCES, CALLS] == [*FINISHES]
    assert set(OF_SEQUENCES) <= set(OUTCOMES)
    params = SamplingParams(stop_token_ids=(7,), max_tokens=3)
    reasons = {ending(params, 7, 1), ending(params, 8, 3)}
    assert reasons == {"stop", "length"} <= set(OF_SEQUENCES)


def test_the_document_lists_every_reason() -> None:
    (schema,) = FinishReason.__metadata__
    assert schema.json_schema["enum"] == [*FINISHES]


def test_whoever_shows_answers_says_which_are_incomplete() -> None:
    """The terminal and the page; the page says nothing only of complete answers."""
    assert {name for name in FINISHES if not cut_note(name, {})} == COMPLETE
    (table,) = re.findall(r"const FINISHES = \{(.*?)\};", PAGE.read_text(), re.DOTALL)
    said = dict(re.findall(r"^\s*(\w+): (.*),$", table, re.MULTILINE))
    assert said.keys() == FINISHES.keys()
    assert {name for name, words in said.items() if words == "null"} == COMPLETE


@pytest.mark.parametrize(
    ("finish", "reason", "status", "why"),
    [
        ("stop", "end_turn", "completed", None),
        ("length", "max_tokens", "incomplete", {"reason": "max_output_tokens"}),
        ("repetition", "end_turn", "incomplete", {"reason": "repetition"}),
    ],
)
def test_other_dialects_have_their_own_words(finish: str, reason: str, status: str, why: dict[str, str] | None) -> None:
    record = RequestRecord("1", "POST", "/", None, Policy())
    *_, message, _ = MessageShape(record, AllowedCalls()).chunks(0, Delta("a", finish=finish), Usage())
    assert message["delta"]["stop_reason"] == reason
    last = ResponseShape(ResponsesBody.model_construct(), "m").chunks(0, Delta("a", finish=finish), Usage())[-1]
    assert (last["type"], last["response"]["incomplete_details"]) == (f"response.{status}", why)
