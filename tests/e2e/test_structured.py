"""Constrained answers and thoughts with a budget at temperature 1: valid, and the same in any company."""

import json
import random
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel, Field

from model.grammar.thinking import GRACE_TOKENS, SENTENCE_END, Thinking
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from model.tokenizers.base import Tokenizer
from model.tokenizers.load import load_tokenizer
from service.structured.constraint import choice_grammar, json_constraint
from tests.e2e.conftest import Load
from tests.e2e.schemas import random_schema
from tests.e2e.without_server import Answer, Request, serve

PROMPT = "<|im_start|>user\nAnswer with any JSON.<|im_end|>\n<|im_start|>assistant\n"


class Person(BaseModel, extra="forbid"):
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=150)


PERSON = Person.model_json_schema()
FORM = json_constraint(PERSON, "json").serialized()
SCHEMAS = [random_schema(random.Random(number)) for number in range(16)]
ENDS = (2, 0)
"""Tokens that end an answer, `<|im_end|>` and `<|endoftext|>`: a grammar allows both at its end."""
BUDGETS = range(10, 14)
"""Tokens of the thoughts of further requests. Every other one of their answers must be a person."""


@pytest.fixture(scope="module")
def tokenizer(short_model: Any) -> Tokenizer:
    return load_tokenizer(short_model)


@pytest.fixture(scope="module")
def runner(load_short: Load) -> ModelRunner:
    return load_short(max_model_len=512)


@pytest.fixture(scope="module")
def prompt(tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(PROMPT, add_bos=False, parse_control=True)


@pytest.fixture(scope="module")
def requests(tokenizer: Tokenizer, prompt: list[int]) -> list[Request]:
    thought = [*prompt, *tokenizer.encode("<think>\n", add_bos=False, parse_control=True)]
    forms = [None if budget % 2 else FORM for budget in BUDGETS]
    thinking = [Thinking("<think>", "</think>", "inside", n, form) for n, form in zip(BUDGETS, forms, strict=True)]
    made = [(prompt, params(json_constraint(schema, "json").serialized())) for schema in SCHEMAS]
    made += [(thought, params(item.to_json(), max_tokens=120)) for item in thinking]
    return [(tokens, replace(item, seed=seed)) for seed, (tokens, item) in enumerate(made)]


def params(grammar: str, seed: int = 0, max_tokens: int = 64) -> SamplingParams:
    common: dict[str, Any] = {"temperature": 1.0, "stop_token_ids": ENDS, "logprobs": 2}
    return SamplingParams(**common, seed=seed, max_tokens=max_tokens, grammar=grammar)


@pytest.fixture(scope="module")
def answers(runner: ModelRunner, requests: list[Request]) -> list[Answer]:
    return serve(runner, requests)[0]


def text(tokenizer: Tokenizer, answer: Answer) -> str:
    return tokenizer.decode([token for token, _ in answer])


def test_what_ends_by_itself_validates(tokenizer: Tokenizer, answers: list[Answer]) -> None:
    found = list(zip(SCHEMAS, answers, strict=False))
    ended = [(schema, answer) for schema, answer in found if answer[-1][0] in ENDS]
    assert len(ended) > 10
    for schema, answer in ended:
        jsonschema.validate(json.loads(text(tokenizer, answer)), schema)
    assert all(len(answer) == 64 for _, answer in found if answer[-1][0] not in ENDS)


def test_thoughts_end_with_a_sentence_and_answers_follow(tokenizer: Tokenizer, answers: list[Answer]) -> None:
    n_marks = len(tokenizer.encode("</think>", add_bos=False, parse_control=False))
    for budget, answer in zip(BUDGETS, answers[len(SCHEMAS) :], strict=True):
        tokens = [token for token, _ in answer]
        thought, closing, rest = tokenizer.decode(tokens).partition("</think>")
        assert closing
        n_free = next(n for n in range(len(tokens)) if "</think>" in tokenizer.decode(tokens[:n])) - n_marks
        assert n_free <= budget + GRACE_TOKENS
        if budget < n_free < budget + GRACE_TOKENS:
            assert SENTENCE_END.search(thought.encode())
        if budget % 2 == 0:
            jsonschema.validate(json.loads(rest), PERSON)


def test_the_same_alone_in_other_company_and_with_drafts(
    runner: ModelRunner, requests: list[Request], answers: list[Answer]
) -> None:
    numbers = [0, 1, 2, len(SCHEMAS), len(SCHEMAS) + 1]
    mine, expected = [requests[n] for n in numbers], [answers[n] for n in numbers]
    free = [(tokens, replace(item, grammar=None)) for tokens, item in mine[:3]]
    mixed = serve(runner, [*free, *mine], max_step_tokens=9)[0]
    assert mixed[3:] == expected
    assert mixed[:3] == serve(runner, free)[0]
    assert [serve(runner, [item])[0][0] for item in mine] == expected
    drafting = [(tokens, replace(item, prompt_lookup_num_tokens=6)) for tokens, item in mine]
    assert serve(runner, drafting)[0] == expected


def test_the_same_with_many_right_drafts(runner: ModelRunner, tokenizer: Tokenizer) -> None:
    """The prompt has a list like that of the answer. Many draft tokens are right, and many break the grammar."""
    grammar = json_constraint({"type": "array", "items": PERSON, "minItems": 3, "maxItems": 6}, "json").serialized()
    people = '[{"name": "Ann", "age": 31},\n{"name": "Bob", "age": 42}, nothing else\n{"name": "Ann", "age": 31}'
    prompt = tokenizer.encode(people * 2 + PROMPT, add_bos=False, parse_control=True)
    plain = [(prompt, replace(params(grammar, seed), temperature=0.5)) for seed in range(4)]
    guessing = [(tokens, replace(item, prompt_lookup_num_tokens=8)) for tokens, item in plain]
    found, scheduler = serve(runner, guessing)
    assert found == serve(runner, plain)[0]
    assert scheduler.stats().drafts("drafted") > scheduler.stats().drafts("accepted") > 20


def test_the_same_after_preemption(load_short: Load, requests: list[Request], answers: list[Answer]) -> None:
    small = load_short(max_model_len=192, cache_memory=6 * 32 * 3072)
    longest = sorted(range(len(answers)), key=lambda number: -len(answers[number]))[:4]
    found, scheduler = serve(small, [requests[number] for number in longest])
    assert scheduler.stats().preemptions > 0
    assert found == [answers[number] for number in longest]


def test_logprobs_are_the_models_own(runner: ModelRunner, tokenizer: Tokenizer, prompt: list[int]) -> None:
    """The grammar forces a token that the model would never choose. Its logprob is the one without the grammar."""
    forced = serve(runner, [(prompt, params(json.dumps(choice_grammar(["Zebra"], "choice"))))])[0][0]
    free = serve(runner, [(prompt, SamplingParams(temperature=0.0, max_tokens=1, logprobs=2))])[0][0]
    assert text(tokenizer, forced) == "Zebra"
    assert forced[0][1].top == free[0][1].top  # type: ignore[union-attr]
    assert forced[0][1].logprob < forced[0][1].top[1][1]  # type: ignore[union-attr]
