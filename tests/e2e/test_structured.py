"""Constrained answers of the embedded model at temperature 1: each that ends by itself is valid."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest

from model.loading import create
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from model.tokenizers.base import Tokenizer
from model.tokenizers.load import load_tokenizer
from service.structured.constraint import choice_grammar, json_constraint
from tests.e2e.schemas import random_schema
from tests.e2e.server import MODEL, LiveServer
from tests.e2e.without_server import Answer, serve

PROMPT = "<|im_start|>user\nAnswer with any JSON.<|im_end|>\n<|im_start|>assistant\n"
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMAS = [random_schema(random.Random(number)) for number in range(24)]


@pytest.fixture(scope="module")
def tokenizer(short_model: Path) -> Tokenizer:
    return load_tokenizer(short_model)


def load(directory: Path, **options: Any) -> ModelRunner:
    options = {"max_model_len": 512, "cache_memory": 128 * 2**20, **options}
    return create(lambda stage, done: None, model=str(directory), device="cpu", **options)


@pytest.fixture(scope="module")
def runner(short_model: Path) -> ModelRunner:
    return load(short_model)


def params(grammar: str, seed: int, **options: Any) -> SamplingParams:
    return SamplingParams(
        temperature=1.0, seed=seed, max_tokens=64, stop_token_ids=(2,), logprobs=2, grammar=grammar, **options
    )


@pytest.fixture(scope="module")
def requests(tokenizer: Tokenizer) -> list[tuple[list[int], SamplingParams]]:
    prompt = tokenizer.encode(PROMPT, add_bos=False, parse_control=True)
    return [
        (prompt, params(json_constraint(schema, "json").serialized(), number)) for number, schema in enumerate(SCHEMAS)
    ]


@pytest.fixture(scope="module")
def answers(runner: ModelRunner, requests: list[tuple[list[int], SamplingParams]]) -> list[Answer]:
    return serve(runner, requests)[0]


def text(tokenizer: Tokenizer, answer: Answer) -> str:
    return tokenizer.decode([token for token, _ in answer])


def test_what_ends_by_itself_validates(tokenizer: Tokenizer, answers: list[Answer]) -> None:
    ended = [number for number, answer in enumerate(answers) if answer[-1][0] == 2]
    assert len(ended) > 16
    for number in ended:
        jsonschema.validate(json.loads(text(tokenizer, answers[number])), SCHEMAS[number])
    for number in set(range(len(answers))) - set(ended):
        assert len(answers[number]) == 64


def test_the_same_alone_and_in_other_company(
    runner: ModelRunner, requests: list[tuple[list[int], SamplingParams]], answers: list[Answer]
) -> None:
    unconstrained = [(prompt, replace(params, grammar=None)) for prompt, params in requests[:3]]
    mixed = serve(runner, [*unconstrained, *requests[:3]], max_step_tokens=9)[0]
    assert mixed[3:] == answers[:3]
    assert mixed[:3] == serve(runner, unconstrained)[0]
    assert [serve(runner, [item])[0][0] for item in requests[3:6]] == answers[3:6]


def test_the_same_with_drafts(runner: ModelRunner, tokenizer: Tokenizer) -> None:
    """The prompt has a list like that of the answer. Many draft tokens are right, and many break the grammar."""
    grammar = json_constraint({"type": "array", "items": PERSON, "minItems": 3, "maxItems": 6}, "json").serialized()
    people = '[{"name": "Ann", "age": 31},\n{"name": "Bob", "age": 42}, nothing else\n{"name": "Ann", "age": 31}'
    prompt = tokenizer.encode(people * 2 + PROMPT, add_bos=False, parse_control=True)
    plain = [(prompt, replace(params(grammar, seed), temperature=0.5)) for seed in range(4)]
    guessing = [(tokens, replace(item, prompt_lookup_num_tokens=8)) for tokens, item in plain]
    expected = [serve(runner, [item])[0][0] for item in plain]
    found = [serve(runner, [item]) for item in guessing]
    assert [answers[0] for answers, _ in found] == expected
    stats = [scheduler.stats() for _, scheduler in found]
    accepted = sum(item.accepted_draft_tokens for item in stats)
    assert sum(item.draft_tokens for item in stats) > accepted > 20


def test_the_same_after_preemption(
    short_model: Path, requests: list[tuple[list[int], SamplingParams]], answers: list[Answer]
) -> None:
    small = load(short_model, max_model_len=128, cache_memory=5 * 32 * 3072)
    longest = sorted(range(len(answers)), key=lambda number: -len(answers[number]))[:3]
    found, scheduler = serve(small, [requests[number] for number in longest])
    assert scheduler.stats().preemptions > 0
    assert found == [answers[number] for number in longest]


def test_logprobs_are_the_models_own(runner: ModelRunner, tokenizer: Tokenizer) -> None:
    """The grammar forces a token that the model would never choose. Its logprob is the one without the grammar."""
    prompt = tokenizer.encode(PROMPT, add_bos=False, parse_control=True)
    forced = serve(runner, [(prompt, params(json.dumps(choice_grammar(["Zebra"], "choice")), 1))])[0][0]
    free = serve(runner, [(prompt, SamplingParams(temperature=0.0, max_tokens=1, logprobs=2))])[0][0]
    assert text(tokenizer, forced) == "Zebra"
    assert forced[0][1].top == free[0][1].top  # type: ignore[union-attr]
    assert forced[0][1].logprob < forced[0][1].top[1][1]  # type: ignore[union-attr]


def test_a_stop_string_ends_it_before_the_grammar_does_and_streams_are_the_same(embedded: LiveServer) -> None:
    ask: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Describe a person."}]}
    ask |= {"temperature": 1, "seed": 5, "max_tokens": 80, "n": 3}
    people = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
    whole = embedded.openai.chat.completions.create(**ask, response_format=people)
    texts = [choice.message.content for choice in whole.choices]
    assert len(set(texts)) == 3
    for choice in whole.choices:
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content or ""), PERSON)
    streamed = ["", "", ""]
    for chunk in embedded.openai.chat.completions.create(**ask, response_format=people, stream=True):
        streamed[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert streamed == texts
    cut = embedded.openai.chat.completions.create(**ask, response_format=people, stop=['"age"'])
    assert [choice.message.content for choice in cut.choices] == [str(text).split('"age"')[0] for text in texts]
    by_regex = embedded.openai.completions.create(
        model=MODEL, prompt="Call", max_tokens=40, extra_body={"structured_outputs": {"regex": "[0-9]{3}-[0-9]{4}"}}
    )
    assert re.fullmatch("[0-9]{3}-[0-9]{4}", by_regex.choices[0].text)
    parsed = embedded.openai.chat.completions.parse(**ask | {"n": 1}, response_format=_person_model())
    assert parsed.choices[0].message.parsed.age >= 0  # type: ignore[union-attr]
    with pytest.raises(openai.BadRequestError, match="Invalid type: persn"):
        embedded.openai.chat.completions.create(**ask, extra_body={"guided_json": {"type": "persn"}})


def _person_model() -> Any:
    from pydantic import BaseModel, Field

    class Person(BaseModel):
        name: str = Field(max_length=12)
        age: int = Field(ge=0, le=150)

    return Person
