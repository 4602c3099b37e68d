"""Thoughts with a budget, with the embedded model: the same in any company, and the answer follows its grammar."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from model.grammar.thinking import GRACE_TOKENS, SENTENCE_END, Thinking
from model.loading import create
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from model.tokenizers.base import Tokenizer
from model.tokenizers.load import load_tokenizer
from service.structured.constraint import json_constraint
from tests.e2e.server import serving
from tests.e2e.without_server import Answer, serve

PROMPT = "<|im_start|>user\nWhy is the sky blue?<|im_end|>\n<|im_start|>assistant\n<think>\n"
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORM = json_constraint(PERSON, "json").serialized()
TEMPLATE = """{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content.split('</think>')[-1].lstrip() }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
<think>
{% endif %}"""
"""A template that opens the thought, as those of DeepSeek-R1's distillations do."""


def load(directory: Path, **options: Any) -> ModelRunner:
    options = {"max_model_len": 512, "cache_memory": 64 * 2**20, **options}
    return create(lambda stage, done: None, model=str(directory), device="cpu", **options)


@pytest.fixture(scope="module")
def tokenizer(short_model: Path) -> Tokenizer:
    return load_tokenizer(short_model)


@pytest.fixture(scope="module")
def runner(short_model: Path) -> ModelRunner:
    return load(short_model)


@pytest.fixture(scope="module")
def requests(tokenizer: Tokenizer) -> list[tuple[list[int], SamplingParams]]:
    prompt = tokenizer.encode(PROMPT, add_bos=False, parse_control=True)

    def params(seed: int) -> SamplingParams:
        grammar = Thinking("<think>", "</think>", "inside", 10 + seed, FORM if seed % 2 else None).to_json()
        return SamplingParams(
            temperature=0.8, seed=seed, max_tokens=160, stop_token_ids=(2,), logprobs=1, grammar=grammar
        )

    return [(prompt, params(seed)) for seed in range(4)]


@pytest.fixture(scope="module")
def answers(runner: ModelRunner, requests: list[tuple[list[int], SamplingParams]]) -> list[Answer]:
    return serve(runner, requests)[0]


def test_thoughts_end_with_a_sentence_and_answers_follow(
    tokenizer: Tokenizer, answers: list[Answer], requests: list[tuple[list[int], SamplingParams]]
) -> None:
    for number, answer in enumerate(answers):
        tokens = [token for token, _ in answer]
        text = tokenizer.decode(tokens)
        thought, closing, rest = text.partition("</think>")
        assert closing
        n_thought = next(n for n in range(len(tokens)) if "</think>" in tokenizer.decode(tokens[: n + 1])) + 1
        n_marks = len(tokenizer.encode("</think>", add_bos=False, parse_control=False))
        n_free = n_thought - n_marks
        assert n_free <= 10 + number + GRACE_TOKENS
        if 10 + number < n_free < 10 + number + GRACE_TOKENS:
            assert SENTENCE_END.search(thought.encode())
        if number % 2:
            jsonschema.validate(json.loads(rest), PERSON)


def test_the_same_in_any_company(
    short_model: Path, runner: ModelRunner, requests: list[tuple[list[int], SamplingParams]], answers: list[Answer]
) -> None:
    assert [serve(runner, [item])[0][0] for item in requests[:3]] == answers[:3], "alone"
    assert serve(runner, requests[::-1], max_step_tokens=9)[0][::-1] == answers, "in another order and other chunks"
    drafting = [(prompt, replace(params, prompt_lookup_num_tokens=6)) for prompt, params in requests]
    assert serve(runner, drafting)[0] == answers, "with drafts"
    small = load(short_model, max_model_len=192, cache_memory=6 * 32 * 3072)
    found, scheduler = serve(small, requests[:4])
    assert scheduler.stats().preemptions > 0
    assert found == answers[:4], "after preemption"


def test_a_server_with_a_budget(tmp_path: Path, short_model: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(TEMPLATE)
    flags = ("--chat-template", str(template), "--reasoning-budget", "12", "--max-model-len", "512")
    with serving(str(short_model), *flags) as server:
        ask: dict[str, Any] = {"messages": [{"role": "user", "content": "Describe a person."}], "max_tokens": 120}
        ask |= {"response_format": {"type": "json_schema", "json_schema": {"name": "p", "schema": PERSON}}}
        ask |= {"temperature": 1, "top_p": 1, "repetition_penalty": 1}
        reply = server.http.post("/v1/chat/completions", json=ask | {"seed": 3}).json()
        message = reply["choices"][0]["message"]
        jsonschema.validate(json.loads(message["content"]), PERSON)
        assert message["reasoning_content"]
        n_thought = reply["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert 12 <= n_thought <= 12 + GRACE_TOKENS + 4
        assert (
            server.http.post("/v1/chat/completions", json=ask | {"seed": 3}).json()["choices"][0]["message"] == message
        )
        none = server.http.post("/v1/chat/completions", json=ask | {"reasoning_effort": "none"}).json()
        assert "reasoning_content" not in none["choices"][0]["message"]
        jsonschema.validate(json.loads(none["choices"][0]["message"]["content"]), PERSON)
        assert server.metric("noria_reasoning_tokens_total") > 2 * n_thought
