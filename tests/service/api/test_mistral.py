"""Mistral's fields and forms: what passes, what clients read, and what is refused."""

from typing import Any, get_args

import pytest
from openai.types.responses import ServiceTier

from service.api.openai.chat import ChatBody
from service.api.openai.completions import CompletionBody
from service.api.openai.fim import FimBody
from service.api.responses.routes import ResponsesBody
from tests.service.api.streams import rendered
from tests.service.live import USER, Live, answer, refused, running

CHAT, COMPLETIONS, FIM, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/fim/completions", "/v1/embeddings"
RESPONSES = "/v1/responses"
BEGUN = {"role": "assistant", "content": "well", "prefix": True}
THOUGHT = [{"type": "thinking", "thinking": [{"type": "text", "text": "a"}], "signature": "x"}]
CALL = {"id": "a", "index": 0, "function": {"name": "f", "arguments": {"a": 1}}}


@pytest.mark.parametrize(
    ("fields", "noticed"),
    [
        ({"safe_prompt": False, "guardrails": [], "prompt_mode": None, "random_seed": None}, None),
        ({"metadata": {"a": "b", "n": 1}, "service_tier": "flex", "prompt_cache_retention": "24h"}, None),
        ({"transforms": [], "usage": {"include": False}}, None),
        ({"prediction": {"type": "content", "content": "so"}}, "prediction"),
        ({"stream": True, "stream_options": {"stream_tool_calls": True, "include_obfuscation": False}}, None),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        *(({"service_tier": tier}, None) for tier in get_args(get_args(ServiceTier)[0])),
        ({"thinking": {"type": "disabled"}}, None),
        ({"thinking": {"type": "adaptive"}, "prompt_logprobs": False}, None),
        ({"messages": [*USER, {"role": "assistant", "content": THOUGHT, "prefix": False}, *USER]}, None),
        (
            {"messages": [{"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "a"}, *USER]},
            None,
        ),
        ({"verbosity": "low", "keep_alive": "5m", "ttl": 60, "store": True}, "verbosity, store, keep_alive, ttl"),
        ({"keep_alive": -1, "verbosity": "medium"}, "keep_alive"),
        ({"prompt_mode": "reasoning"}, "prompt_mode"),
        ({"thinking": {"type": "enabled"}}, "thinking"),
        ({"prompt_mode": "reasoning", "reasoning_effort": "low"}, "reasoning_effort, prompt_mode"),
        ({"thinking_token_budget": 5, "prompt_mode": "reasoning"}, "prompt_mode, thinking_token_budget"),
    ],
)
def test_fields_that_change_no_answer_pass(live: Live, fields: dict[str, Any], noticed: str | None) -> None:
    response = live.post(CHAT, {"messages": USER, "max_tokens": 2, **fields})
    assert response.status_code == 200, response.text
    assert response.headers.get("x-noria-ignored") == noticed


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (RESPONSES, {"input": "a", "max_output_tokens": 2}),
        (EMBEDDINGS, {"input": "a"}),
        ("/v1/messages", {"messages": USER, "max_tokens": 2}),
        (FIM, {"prompt": "a", "max_tokens": 2}),
    ],
)
def test_the_time_that_a_model_stays_loaded_has_no_effect(live: Live, path: str, body: dict[str, Any]) -> None:
    response = live.post(path, {**body, "keep_alive": "5m", "ttl": 60})
    assert (response.status_code, response.headers.get("x-noria-ignored")) == (200, "keep_alive, ttl"), response.text
    wrong = live.post(path, {**body, "ttl": "soon"})
    assert wrong.status_code == 400
    assert all(word in wrong.json()["error"]["message"] for word in ("ttl", "a number", "soon"))


def after(*messages: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [*USER, *messages]}


@pytest.mark.parametrize(
    ("path", "fields", "param", "words"),
    [
        (CHAT, {"safe_prompt": True}, "safe_prompt", ["true", "does not add", "guard prompt"]),
        (COMPLETIONS, {"prompt": "a", "safe_prompt": True}, "safe_prompt", ["true", "guard prompt"]),
        (FIM, {"prompt": "a", "safe_prompt": True}, "safe_prompt", ["true", "guard prompt"]),
        (RESPONSES, {"input": "a", "random_seed": 3, "seed": 4}, "seed", ["3", "4", "differ"]),
        (RESPONSES, {"input": "a", "seed": "x"}, "seed", ["an integer", '"x"']),
        (CHAT, {"guardrails": [{}]}, "guardrails", ["[]"]),
        (CHAT, {"prompt_mode": "fast"}, "prompt_mode", ["reasoning", '"fast"']),
        (
            CHAT,
            {"thinking": {"type": "adaptive", "budget_tokens": 9}},
            "thinking.budget_tokens",
            ["enabled", '"adaptive"'],
        ),
        (CHAT, {"thinking": {"type": "on"}}, "thinking.type", ['"enabled"', '"on"']),
        (CHAT, {"prompt_mode": "reasoning", "reasoning_effort": "none"}, "prompt_mode", ['"none"', '"reasoning"']),
        (
            CHAT,
            {"thinking": {"type": "disabled"}, "reasoning_effort": "high"},
            "thinking",
            ['reasoning_effort ("high")', 'thinking ("disabled")'],
        ),
        (
            CHAT,
            {"thinking_token_budget": 5, "thinking": {"type": "enabled", "budget_tokens": 6}},
            "thinking",
            ["thinking_token_budget", "5", "6"],
        ),
        (CHAT, {"random_seed": 1, "seed": 2}, "seed", ["1", "2", "differ"]),
        (CHAT, {"random_seed": "x"}, "random_seed", ["an integer", '"x"']),
        (CHAT, {"metadata": "x"}, "metadata", ["an object", '"x"']),
        (CHAT, {"metadata": {"a": [10**23]}}, "metadata", ["64 bits", "1000"]),
        (CHAT, {"verbosity": "loud"}, "verbosity", ["medium", '"loud"']),
        (CHAT, {"keep_alive": []}, "keep_alive", ["a string or a number"]),
        (CHAT, {"ttl": "x"}, "ttl", ["a number"]),
        (CHAT, {"transforms": ["middle-out"]}, "transforms", ["[]"]),
        (CHAT, {"usage": {"include": 1}}, "usage.include", ["a boolean", "1"]),
        (CHAT, {"prompt_cache_retention": "1h"}, "prompt_cache_retention", ["24h", "1h"]),
        (CHAT, {"service_tier": "gold"}, "service_tier", ["gold"]),
        (CHAT, {"top_prompt_logprobs": 2}, "top_prompt_logprobs", ["prompt_logprobs", "2"]),
        (CHAT, {"prompt_logprobs": True, "stream": True}, "prompt_logprobs", ["stream"]),
        (CHAT, {"prompt_logprobs": True, "n": 2}, "prompt_logprobs", ["n to be 1", "2"]),
        (FIM, {"prompt": "a", "prompt_logprobs": True, "n": 3}, "prompt_logprobs", ["n to be 1", "3"]),
        (CHAT, {"prompt_logprobs": "x"}, "prompt_logprobs", ["an integer or a boolean"]),
        (
            CHAT,
            {"stream": True, "stream_options": {"stream_tool_calls": False}},
            "stream_options.stream_tool_calls",
            ["true", "false"],
        ),
        (CHAT, {"reasoning_format": "xml"}, "reasoning_format", ["mistral", '"xml"']),
        (CHAT, after(BEGUN, *USER), "messages[1].prefix", ["last message", "2 of 3", "assistant"]),
        (CHAT, {"messages": [USER[0] | {"prefix": True}]}, "messages[0].prefix", ["assistant", "role user"]),
        (CHAT, after(BEGUN | {"prefix": "x"}), "messages[1].prefix", ["a boolean", '"x"']),
        (CHAT, after(BEGUN) | {"continue_final_message": False}, "continue_final_message", ["messages[1].prefix"]),
        (CHAT, after(BEGUN) | {"add_generation_prompt": True}, "add_generation_prompt", ["messages[1].prefix"]),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "document_url", "document_url": "x"}]}]},
            "messages[0].content[0].type",
            ['"document_url"', '"image_url"'],
        ),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": "x"}]}]},
            "messages[0].content[0].input_audio",
            ["this model takes no audio"],
        ),
        (FIM, {}, "prompt", ["required"]),
        (FIM, {"prompt": ["a"]}, "prompt", ["a string"]),
        (FIM, {"prompt": "a", "suffix": "b"}, "suffix", ["[SUFFIX]", '"b"']),
        (FIM, {"prompt": "a", "echo": True}, "echo", ["unknown field"]),
        (FIM, {"prompt": "a", "max_tokens": 0}, "max_tokens", ["equal to 1, got 0"]),
        (FIM, {"prompt": "a", "n_predict": 0}, "n_predict", ["equal to 1, got 0"]),
        (EMBEDDINGS, {"input": "a", "output_dimension": 2}, "output_dimension", ["3", "2"]),
        (EMBEDDINGS, {"input": "a", "output_dtype": "int8"}, "output_dtype", ["float", "int8"]),
        (EMBEDDINGS, {"input": "a", "metadata": 1}, "metadata", ["an object"]),
    ],
)
def test_what_would_change_an_answer_is_refused(
    live: Live, path: str, fields: dict[str, Any], param: str, words: list[str]
) -> None:
    error = refused(live, path, {"messages": USER} | fields if path == CHAT else fields)
    assert error["param"] == param, error
    assert all(word in error["message"] for word in words), error


def test_lenient_servers_ignore_neither_a_prefix_nor_a_seed() -> None:
    with running(lenient=True) as live:
        response = live.post(CHAT, after(BEGUN) | {"random_seed": 7, "max_tokens": 4})
        assert response.json()["choices"][0]["message"]["content"] == answer("u:hi;a:well", 4)
        assert "x-noria-ignored" not in response.headers
        assert refused(live, CHAT, after(BEGUN, *USER))["param"] == "messages[1].prefix"
        for path, body in ((COMPLETIONS, {"prompt": "a"}), (FIM, {"prompt": "a"})):
            assert refused(live, path, body | {"safe_prompt": True})["param"] == "safe_prompt"
        assert refused(live, RESPONSES, {"input": "a", "random_seed": 3, "seed": 4})["param"] == "seed"
        assert live.post("/tokenize", after(BEGUN)).json()["tokens"] == [*b"u:hi;a:well"]


@pytest.mark.parametrize(
    "body",
    [
        ChatBody(messages=[], random_seed=7),
        CompletionBody(prompt="a", random_seed=7),
        FimBody(prompt="a", random_seed=7, seed=7),
    ],
    ids=lambda body: type(body).__name__,
)
def test_a_random_seed_is_a_seed(body: ChatBody | CompletionBody | FimBody) -> None:
    assert body.given == {"seed": 7}


@pytest.mark.parametrize("name", ["seed", "random_seed"])
def test_responses_have_a_seed(name: str) -> None:
    assert ResponsesBody.model_validate({"input": "a", name: 7}).chat().options.sampling == {"seed": 7}


def test_any_is_required() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    body = ChatBody.model_validate({"messages": [], "tools": tools, "tool_choice": "any"})
    assert body.calls.must


def test_metadata_comes_back(live: Live) -> None:
    for path, body in ((CHAT, {"messages": USER}), (COMPLETIONS, {"prompt": "a"}), (FIM, {"prompt": "a"})):
        given = {"metadata": {"os": "x", "n": 1}, "max_tokens": 1}
        assert live.post(path, body | given).json()["metadata"] == given["metadata"]
        assert "metadata" not in live.post(path, body | {"max_tokens": 1}).json()


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        (CHAT, '{"messages": [{"role": "user", "content": "a"}], "metadata": {"a": [%s]}}', "metadata"),
        (COMPLETIONS, '{"prompt": "a", "metadata": {"a": %s}}', "metadata"),
        (FIM, '{"prompt": "a", "metadata": {"a": {"b": %s}}}', "metadata"),
        (
            "/v1/responses",
            '{"input": "a", "tools": [{"type": "function", "name": "f", "parameters": {"a": %s}}]}',
            "tools[0].parameters",
        ),
        (
            "/v1/responses",
            '{"input": "a", "text": {"format": {"type": "json_schema", "name": "f", "schema": {"maximum": %s}}}}',
            "text.format.schema",
        ),
    ],
)
@pytest.mark.parametrize(
    ("number", "words"), [("1" + "0" * 23, "64 bits"), ("1e999", "finite"), ("-Infinity", "finite"), ("NaN", "finite")]
)
def test_numbers_that_no_answer_can_repeat_are_refused(
    live: Live, path: str, body: str, param: str, number: str, words: str
) -> None:
    headers = {"content-type": "application/json"}
    response = live.http.post(path, content=body % number, headers=headers)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert words in error["message"]


def test_the_prompt_is_scored_in_mistrals_form(live: Live) -> None:
    """As `ChatCompletionResponseTokenLogprobsTopK` of its SDK; the first token has no logprob."""
    scores = {"prompt_logprobs": True, "top_prompt_logprobs": 1, "max_tokens": 1}
    for path, body, text in ((CHAT, {"messages": USER}, rendered("hi")), (FIM, {"prompt": "abc"}, "abc")):
        found = live.post(path, body | scores).json()["choices"][0]["prompt_logprobs"]["content"]
        assert [item["token"] for item in found] == [*text[1:]]
        assert {*found[0]} == {"token", "token_id", "logprob", "bytes", "top_logprobs"}
        assert [item["token_id"] for item in found] == [*text[1:].encode()]


# /v1/fim/completions


def test_a_gap_is_answered_as_a_chat(live: Live) -> None:
    reply = live.post(FIM, {"prompt": "def f", "max_tokens": 6, "suffix": ""}).json()
    assert (reply["object"], reply["choices"][0]["finish_reason"]) == ("chat.completion", "length")
    assert reply["choices"][0]["message"]["content"] == answer("def f", 6)
    assert reply["usage"]["total_tokens"] == 11
    chunks = live.events(FIM, {"prompt": "def f", "max_tokens": 6})
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == answer("def f", 6)
    assert chunks[-1]["usage"]["completion_tokens"] == 6
    assert not any("usage" in chunk for chunk in chunks[:-1])


@pytest.mark.parametrize(
    ("path", "body"),
    [(FIM, {"prompt": "def f"}), (CHAT, {"messages": USER, "reasoning_format": "mistral"})],
)
def test_the_last_choice_of_a_stream_has_the_usage(live: Live, path: str, body: dict[str, Any]) -> None:
    chunks = live.events(path, body | {"n": 3, "max_tokens": 4})
    assert sum(bool(chunk["choices"][0]["finish_reason"]) for chunk in chunks) == 3
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks if "usage" in chunk] == [12]
    assert "usage" in chunks[-1]


@pytest.mark.parametrize("stream", [{}, {"stream_options": {"include_usage": False}}])
@pytest.mark.parametrize(
    ("agent", "body", "counted"),
    [
        ("mistral-client-python/3.7.0", {}, True),
        ("litellm/1.106.2", {}, True),
        ("python-httpx/0.28.1", {"safe_prompt": False}, True),
        ("python-httpx/0.28.1", {"random_seed": 3}, True),  # langchain-mistralai
        ("OpenAI/Python 3.57.0", {}, False),
    ],
)
def test_mistrals_clients_get_the_usage_unasked(
    live: Live, agent: str, body: dict[str, Any], counted: bool, stream: dict[str, Any]
) -> None:
    asked = {"messages": USER, "max_tokens": 6, **body, **stream}
    chunks = live.events(CHAT, asked, headers={"user-agent": agent})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks if "usage" in chunk]
    assert counts == ([6] if counted and not stream else [])
    assert chunks[-1]["choices"], "no chunk without a choice: Mistral's clients read the first"


def test_mistrals_conversations_are_refused_in_a_sentence(live: Live) -> None:
    body = {"inputs": "hi", "model": "fake", "stream": False, "completion_args": {}}
    response = live.post("/v1/conversations", body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["param"], error["code"]) == ("inputs", "unsupported_parameter")
    assert error["message"].startswith("inputs belongs to Mistral's conversations, which this server does not have")


def test_without_a_limit_it_fills_the_context() -> None:
    with running(max_model_len=50) as live:
        assert live.post(FIM, {"prompt": "def f"}).json()["usage"]["total_tokens"] == 50
        assert refused(live, FIM, {"prompt": "x" * 50})["param"] == "prompt"


def test_a_prompt_is_cut_to_what_fits() -> None:
    with running(max_model_len=50) as live:
        asked = {"prompt": "ab" * 60, "truncate_prompt_tokens": -1}
        assert live.post(FIM, asked).json()["usage"]["prompt_tokens"] == 49
        error = refused(live, FIM, {"prompt": "x" * 20, "min_tokens": 31})
        assert (error["param"], "(30)" in error["message"]) == ("min_tokens", True)


# /v1/models


def test_a_model_has_the_type_that_the_client_reads(live: Live) -> None:
    """Mistral's SDKs read `base` and `fine-tuned`, Anthropic's `model`."""
    for path in ("/v1/models", "/v1/models/fake"):
        for headers, kind in (({}, "base"), ({"anthropic-version": "2023-06-01"}, "model")):
            found = live.http.get(path, headers=headers).json()
            cards = found.get("data", [found])
            assert {card["type"] for card in cards} == {kind}
    assert cards[0]["max_context_length"] == cards[0]["max_model_len"]
    assert not cards[0]["capabilities"]["completion_fim"]
