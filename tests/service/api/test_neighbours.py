"""What clients of vLLM, llama.cpp and SageMaker send and read: other names, stop_reason, usage, /tokenizer_info."""

from typing import Any

import pytest

from tests.service.live import USER, Live, answer, refused, running

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("path", "given", "meant"),
    [
        (COMPLETIONS, {"repeat_penalty": 1.5}, {"repetition_penalty": 1.5}),
        (COMPLETIONS, {"n_predict": 3}, {"max_tokens": 3}),
        (COMPLETIONS, {"n_probs": 2}, {"logprobs": 2}),
        (COMPLETIONS, {"n_probs": 0}, {}),
        (COMPLETIONS, {"logprobs": True}, {"logprobs": 0}),
        (COMPLETIONS, {"logprobs": True, "top_logprobs": 2}, {"logprobs": 2}),
        (COMPLETIONS, {"logprobs": 2, "top_logprobs": 2}, {"logprobs": 2}),
        (COMPLETIONS, {"logprobs": False}, {}),
        (CHAT, {"n_probs": 2}, {"logprobs": True, "top_logprobs": 2}),
        (CHAT, {"logprobs": True, "n_probs": 2}, {"logprobs": True, "top_logprobs": 2}),
        (CHAT, {"n_predict": 3, "max_tokens": None}, {"max_tokens": 3}),
        (CHAT, {"n_predict": 3, "max_completion_tokens": 3, "max_tokens": None}, {"max_tokens": 3}),
    ],
)
def test_other_names_mean_the_same(live: Live, path: str, given: dict[str, Any], meant: dict[str, Any]) -> None:
    base: dict[str, Any] = {"prompt": "hello"} if path == COMPLETIONS else {"messages": USER}
    base |= {} if "n_predict" in given else {"max_tokens": 4}
    found, expected = (live.post(path, base | fields).json() for fields in (given, meant))
    assert found["choices"] == expected["choices"]
    assert found["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"repeat_penalty": 1.5, "repetition_penalty": 1.2}, "repetition_penalty", ["1.2", "repeat_penalty (1.5)"]),
        ({"repeat_penalty": 11}, "repeat_penalty", ["10", "11"]),
        ({"max_tokens": 3, "n_predict": 4}, "max_tokens", ["max_tokens (3)", "n_predict (4)"]),
        ({"n_predict": -1}, "n_predict", ["-1", "0"]),
        ({"guided_json": {}, "json_schema": SCHEMA}, "guided_json", ["json_schema", "differ"]),
        ({"response_format": {"type": "text", "schema": {}}}, "response_format.schema", ["json_object", '"text"']),
        ({"response_format": {"type": "json_object", "schema": 5}}, "response_format.schema", ["object", "5"]),
    ],
)
def test_different_values_and_wrong_ones_are_refused(
    live: Live, fields: dict[str, Any], param: str, words: list[str]
) -> None:
    error = refused(live, COMPLETIONS, {"prompt": "a", **fields})
    assert error["param"] == param
    assert all(word in error["message"] for word in words), error


@pytest.mark.parametrize(
    "fields",
    [
        {"response_format": {"type": "json_object", "schema": {"type": "strin"}}},
        {"json_schema": {"type": "strin"}},
        {"json_schema": '{"type": "strin"}'},
    ],
)
def test_the_schemas_of_llama_cpp_are_enforced(live: Live, fields: dict[str, Any]) -> None:
    """A schema that nobody can follow is refused, so it is read."""
    assert "Invalid type: strin" in refused(live, CHAT, {"messages": USER, **fields})["message"]
    allowed = {"response_format": {"type": "json_object", "schema": SCHEMA}}
    assert live.chat("hi", max_tokens=3, **allowed)["choices"]


# stop_reason


def test_stop_reason_is_what_the_request_stopped_at(live: Live) -> None:
    whole = answer("stopping", 40)
    string, token = whole[9:12], ord(whole[6])
    cases: list[tuple[dict[str, Any], str | int | None]] = [
        ({"stop": string}, string),
        ({"stop": ["never said", string]}, string),
        ({"stop_token_ids": [token]}, token),
        ({"max_tokens": 2}, None),
    ]
    for fields, expected in cases:
        choice = live.complete(**{"prompt": "stopping", "max_tokens": 40, **fields})["choices"][0]
        assert choice["stop_reason"] == expected
        chunks = live.events(COMPLETIONS, {"prompt": "stopping", "max_tokens": 40, **fields})
        assert [chunk["choices"][0]["stop_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + [expected]


def test_stop_reason_in_chat(live: Live) -> None:
    whole = live.chat("stopping", max_tokens=40)["choices"][0]["message"]["content"]
    fields = {"max_tokens": 40, "stop": whole[5:8]}
    assert live.chat("stopping", **fields)["choices"][0]["stop_reason"] == whole[5:8]
    messages = [{"role": "user", "content": "stopping"}]
    chunks = live.events(CHAT, {"messages": messages, **fields})
    assert [choice.get("stop_reason") for chunk in chunks for choice in chunk["choices"]][-1] == whole[5:8]


def test_the_models_own_end_is_no_reason(live: Live) -> None:
    """Greedy requests of the fake model end with its end token at some length of the prompt."""
    ends = [live.complete(prompt="a" * n, temperature=0, max_tokens=60)["choices"][0] for n in range(1, 9)]
    stopped = [choice for choice in ends if choice["finish_reason"] == "stop"]
    assert stopped
    assert all(choice["stop_reason"] is None for choice in stopped)


# Usage in streams


@pytest.mark.parametrize(
    ("options", "every", "last"),
    [
        ({"include_usage": False}, False, False),
        ({"include_usage": False, "continuous_usage_stats": True}, False, False),
        ({"include_usage": True, "continuous_usage_stats": True}, True, True),
        ({"continuous_usage_stats": True}, True, True),
        ({"include_usage": True}, False, True),
        ({}, False, False),
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_usage_comes_where_it_is_wanted(
    live: Live, path: str, options: dict[str, Any], every: bool, last: bool
) -> None:
    body = {"prompt": "a"} if path == COMPLETIONS else {"messages": USER}
    *chunks, final = live.events(path, {**body, "max_tokens": 4, "stream_options": options})
    assert bool(final.get("usage")) == last
    assert all(bool(chunk.get("usage")) == every for chunk in chunks)
    assert last or not any("usage" in chunk for chunk in (*chunks, final))


def test_a_role_chunk_counts_no_tokens(live: Live) -> None:
    body = {"messages": USER, "max_tokens": 4, "n": 2, "stream_options": {"continuous_usage_stats": True}}
    chunks = [chunk for chunk in live.events(CHAT, body) if chunk["choices"]]
    opening = [chunk["usage"] for chunk in chunks if chunk["choices"][0]["delta"].get("role")]
    assert [usage["completion_tokens"] for usage in opening] == [0, 0]
    assert opening[0]["total_tokens"] == opening[0]["prompt_tokens"] == len("u:hi;a:")
    assert chunks[-1]["usage"]["completion_tokens"] == 8


# Endpoints


def test_tokenizer_info_is_what_lm_eval_reads(live: Live) -> None:
    info = live.http.get("/tokenizer_info").json()
    assert {"tokenizer_class", "eos_token", "bos_token", "pad_token", "chat_template"} <= set(info)
    assert (info["eos_token"], info["chat_template"]) == ("<end>", "{{ messages }}")
    ids = live.post("/tokenize", {"prompt": info["eos_token"], "add_special_tokens": False}).json()["tokens"]
    assert len(ids) == 1
    assert live.post("/detokenize", {"tokens": ids}).json()["prompt"] == info["eos_token"]


def test_tokenizer_info_needs_the_key_and_ping_does_not() -> None:
    with running(api_keys=("right",)) as live:
        assert live.http.get("/tokenizer_info").status_code == 401
        for method in ("GET", "POST", "HEAD"):
            assert live.http.request(method, "/ping").status_code == 200
    with running(chat=False) as live:
        assert live.http.get("/tokenizer_info").json()["chat_template"] is None
