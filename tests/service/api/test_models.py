"""What `/v1/models` says of a model: the sampling of a silent request, and what requests may contain."""

import pytest

from model.chat.reasoning import STYLES
from model.checkpoint.generation_config import GenerationDefaults
from service.api.openai.models import facts
from service.generation.served import ServedModel
from tests.fakes import IntegerTokenizer, make_info
from tests.service.live import FakeChat, running

NEUTRAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}


CHATS = ("chat", "tools", "completion_chat", "function_calling")
"""Noria's names and Mistral's."""


class ThinkingChat(FakeChat):
    """A format with thoughts in tags."""

    reasoning_style = "tags"


def test_the_defaults_are_the_models_own_and_then_the_servers() -> None:
    own = {"temperature": 0.3, "top_k": 5}
    with running(sampling=own) as live:
        card = live.http.get("/v1/models/fake").json()
        assert card["defaults"] == NEUTRAL | own
        assert live.http.get("/v1/models").json()["data"][0] == card
    with running() as live:
        assert live.http.get("/v1/models/org/alias").json()["defaults"] == NEUTRAL


@pytest.mark.parametrize(("chat", "more"), [(None, ()), (FakeChat(), CHATS), (ThinkingChat(), (*CHATS, "reasoning"))])
def test_capabilities_are_those_of_the_model(chat: FakeChat | None, more: tuple[str, ...]) -> None:
    marks = STYLES["tags"] if chat and chat.reasoning_style else None
    served = ServedModel(("m",), IntegerTokenizer(), chat, GenerationDefaults(), 1, make_info(), marks)
    assert {name for name, has in facts(served, "m", (), "base")["capabilities"].items() if has} == {*more}
