"""Outlines as a client of vLLM's server."""

import json
import re
from typing import Any, Literal

import openai
import outlines
import pytest
from outlines.types import CFG, Regex
from pydantic import BaseModel

from tests.agents.proxy import Record

ASK = "Say a number."
FIELDS: dict[str, Any] = {"temperature": 0, "max_tokens": 40}


class Word(BaseModel):
    """A word."""

    word: Literal["one", "two"]


@pytest.fixture
def model(record: Record) -> Any:
    client = openai.OpenAI(base_url=f"{record.url}/v1", api_key="none", max_retries=0)
    return outlines.from_vllm(client, "smollm2-135m-instruct")


def test_an_answer(model: Any) -> None:
    text = model(ASK, **FIELDS)
    assert text
    assert "".join(model.stream(ASK, **FIELDS)) == text


def test_a_schema_a_regular_expression_a_choice_and_a_grammar(model: Any) -> None:
    assert json.loads(model(ASK, Word, **FIELDS))["word"] in ("one", "two")
    assert re.fullmatch(r"\d{3}-\d{2}", model(ASK, Regex(r"\d{3}-\d{2}"), **FIELDS))
    assert model(ASK, Literal["red", "blue"], **FIELDS) in ("red", "blue")
    assert model(ASK, CFG('start: "yes" | "no"'), **FIELDS) in ("yes", "no")
