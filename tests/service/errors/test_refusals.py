"""Every error in a request: status, field, value and limit in the answer."""

from typing import Any

import pytest

from model.batch import BROKEN_NUMBERS
from model.sampling_params import PARAMETERS
from tests.fakes import FAULTY
from tests.service.live import USER, Live, begun, refused, running

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": "hot"}, "temperature", ["number", "hot"]),
        ({"top_k": 1.5}, "top_k", ["integer", "1.5"]),
        ({"seed": 10**400}, "seed", ["less than"]),
        ({"max_tokens": 0}, "max_tokens", ["1", "got 0"]),
        ({"max_tokens": 4, "min_tokens": 5}, "min_tokens", ["4", "5"]),
        ({"n": 0}, "n", ["0", "1"]),
        ({"n": 129}, "n", ["129", "128"]),
        ({"stop": [""]}, "stop", ["1 to 512"]),
        ({"stop": ["x"] * 17}, "stop", ["16", "17"]),
        ({"stop": 5}, "stop", ["string", "5"]),
        ({"stop_token_ids": [256]}, "stop_token_ids", ["256", "255"]),
        ({"stop_token_ids": [True]}, "stop_token_ids[0]", ["integer"]),
        ({"logit_bias": {"256": 1}}, "logit_bias", ["256", "255"]),
        ({"logit_bias": {"x": 1}}, "logit_bias", ["token ids"]),
        ({"logit_bias": {"5": "x"}}, "logit_bias", ["5", "number", '"x"']),
        ({"logit_bias": {"5": True}}, "logit_bias", ["5", "number", "true"]),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias", ["1024", "1025"]),
        ({"logit_bias": {"5": 101}}, "logit_bias", ["101", "100"]),
        ({"stream_options": {"include_usage": True}}, "stream_options", ["stream is true"]),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage", ["'usage'"]),
        ({"stream": "yes"}, "stream", ["boolean", "yes"]),
        ({"frobnicate": 1, "other": 2}, "frobnicate", ["'frobnicate'", "'other'"]),
        ({"store": "x"}, "store", ["false", '"x"']),
        ({"allowed_token_ids": []}, "allowed_token_ids", ["at least 1"]),
        ({"allowed_token_ids": [1, 256]}, "allowed_token_ids", ["256", "255"]),
        ({"allowed_token_ids": [97], "bad_words": ["a"]}, "allowed_token_ids", ["bad_words"]),
        ({"bad_words": ["a"] * 129}, "bad_words", ["128", "129"]),
        ({"bad_words": ["a", "  "]}, "bad_words[1]", ['"  "']),
        ({"bad_words": ["a" * 513]}, "bad_words[0]", ["512"]),
        ({"bad_words": "a"}, "bad_words", ["array"]),
        ({"include_stop_str_in_output": 1}, "include_stop_str_in_output", ["boolean", "1"]),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens", ["-1", "-2"]),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", ["1", "0"]),
        ({"truncate_prompt_tokens": 513}, "truncate_prompt_tokens", ["512", "513"]),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs", ["stream"]),
        ({"priority": 2**63}, "priority", [str(2**63)]),
        ({"cache_salt": ""}, "cache_salt", ["1"]),
        ({"cache_salt": "x" * 1025}, "cache_salt", ["1024"]),
        ({"timeout": 0}, "timeout", ["greater than 0"]),
        ({"timeout": 86401}, "timeout", ["86400"]),
        ({"user": "x" * 513}, "user", ["512"]),
        ({"repetition_detection": 3}, "repetition_detection", ["object", "3"]),
        ({"repetition_detection": {"max_pattern": 3}}, "repetition_detection.max_pattern", ["max_pattern_size"]),
        ({"repetition_detection": {"max_pattern_size": 513}}, "repetition_detection.max_pattern_size", ["512"]),
        ({"repetition_detection": {"max_pattern_size": 3}}, "repetition_detection.min_count", ["2", "got 0"]),
        ({"repetition_detection": {"min_pattern_size": 1}}, "repetition_detection.min_pattern_size", ["0", "got 1"]),
        ({"repetition_detection": {"min_count": True}}, "repetition_detection.min_count", ["integer", "true"]),
        (
            {"repetition_detection": {"max_pattern_size": 3, "min_count": 3}, "guided_choice": ["a"]},
            "repetition_detection",
            ["contradicts a grammar", '"min_count": 3'],
        ),
    ],
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_fields_of_both_endpoints(live: Live, path: str, fields: dict[str, Any], param: str, words: list[str]) -> None:
    body = {"prompt": "hi"} if path == COMPLETIONS else {"messages": USER}
    error = refused(live, path, body | fields)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"
    assert all(word in error["message"] for word in [param.split(".")[0], *words])


LIMITED = {name: row.limits for name, row in PARAMETERS.items() if row.description is not None and row.limits}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("name", LIMITED)
def test_a_parameter_beyond_its_limits(live: Live, path: str, name: str) -> None:
    body = {"prompt": "hi"} if path == COMPLETIONS else {"messages": USER}
    least, most = LIMITED[name]
    for value, limit in ((least - 1, least), (most + 1, most)):
        error = refused(live, path, body | {name: value})
        assert error["param"] == name
        assert all(f"{number:g}" in error["message"] or str(number) in error["message"] for number in (value, limit))


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "prompt", ["required"]),
        ({"prompt": ""}, "prompt", ["empty"]),
        ({"prompt": []}, "prompt", ["empty"]),
        ({"prompt": ["a", ""]}, "prompt", ["empty"]),
        ({"prompt": ["a", 1]}, "prompt", ["token ids"]),
        ({"prompt": [True]}, "prompt", ["token ids"]),
        ({"prompt": [256]}, "prompt", ["256", "255"]),
        ({"prompt": [-1]}, "prompt", ["-1", "255"]),
        ({"prompt": [10**400]}, "prompt", ["vocabulary"]),
        ({"prompt": ["a"] * 1025}, "prompt", ["1024", "1025"]),
        ({"prompt": ["a"] * 100, "n": 11}, "n", ["1024", "100 x 11"]),
        ({"prompt": "a", "store": True}, "store", ["false", "true"]),
        ({"prompt": "a", "logprobs": 6}, "logprobs", ["5", "6"]),
        ({"prompt": "a", "logprobs": "all"}, "logprobs", ["an integer or a boolean", '"all"']),
        ({"prompt": "a", "logprobs": 2, "top_logprobs": 3}, "logprobs", ["2", "top_logprobs (3)", "differ"]),
        ({"prompt": "a", "logprobs": False, "n_probs": 3}, "logprobs", ["false", "n_probs (3)", "differ"]),
        ({"prompt": "a", "top_logprobs": 3}, "top_logprobs", ["logprobs", "3"]),
        ({"prompt": "a", "n": 3, "best_of": 2}, "best_of", ["2", "at least n (3)"]),
        ({"prompt": "a", "best_of": 0}, "best_of", ["1", "0"]),
        ({"prompt": "a", "best_of": 2, "stream": True}, "best_of", ["stream", "2", "1"]),
        ({"prompt": ["a"] * 100, "best_of": 11}, "best_of", ["1024", "100 x 11"]),
        ({"prompt": "a" * 60, "truncate_prompt_tokens": 4, "max_tokens": 509}, "max_tokens", ["512", "513"]),
        ({"prompt": "a", "suffix": "b"}, "suffix", ['"b"']),
        ({"prompt": "a" * 500}, "max_tokens", ["512", "516", "500", "16"]),
        ({"prompt": "a" * 512}, "prompt", ["512", "528"]),
    ],
)
def test_completions(live: Live, body: dict[str, Any], param: str, words: list[str]) -> None:
    error = refused(live, COMPLETIONS, body)
    assert error["param"] == param
    assert all(word in error["message"] for word in words), error


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({}, "messages", ["required"]),
        ({"messages": []}, "messages", ["empty"]),
        ({"messages": [{"content": "hi"}]}, "messages[0].role", ["required"]),
        ({"messages": [{"role": "critic", "content": "hi"}]}, "messages[0].role", ['"critic"', "not supported"]),
        ({"messages": [*USER, {"role": "user"}]}, "messages[1].content", ["required"]),
        ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", ["a string or an array", "got 5"]),
        ({"messages": [{"role": "user", "content": "x", "mood": "good"}]}, "messages[0].mood", ["'mood'"]),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]},
            "messages[0].tool_calls[0].function",
            ["required"],
        ),
        ({"messages": USER, "top_logprobs": 2}, "top_logprobs", ["logprobs"]),
        ({"messages": USER, "logprobs": True, "top_logprobs": 21}, "top_logprobs", ["20", "21"]),
        ({"messages": USER, "max_tokens": 3, "max_completion_tokens": 4}, "max_tokens", ["3", "4"]),
        ({"messages": USER, "max_completion_tokens": 0}, "max_completion_tokens", ["1", "got 0"]),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": ""}] * 16385}]},
            "messages[0].content",
            ["16384"],
        ),
        ({"messages": [{**USER[0], "name": "x" * 257}]}, "messages[0].name", ["256"]),
        ({"messages": USER, "chat_template": "x"}, "chat_template", ["null"]),
        ({"messages": USER, "chat_template_kwargs": {"mood": 1}}, "chat_template_kwargs", ["mood"]),
        ({"messages": USER, "continue_final_message": True}, "continue_final_message", ["assistant", "user"]),
        (
            {"messages": USER, "continue_final_message": True, "add_generation_prompt": True},
            "add_generation_prompt",
            ["both"],
        ),
    ],
)
def test_chat(live: Live, body: dict[str, Any], param: str, words: list[str]) -> None:
    error = refused(live, CHAT, body)
    assert error["param"] == param
    assert all(word in error["message"] for word in words), error


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_must_be_finite(live: Live, text: str) -> None:
    body = f'{{"prompt": "hi", "temperature": {text}}}'
    response = live.http.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize("content", [b"", b"{", b"null", b"[]", b'"x"', b'{"prompt": "\\ud800"}', b"\xff\xfe"])
def test_a_body_that_is_no_object(live: Live, content: bytes) -> None:
    response = live.http.post(COMPLETIONS, content=content, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"]["message"]


def test_a_refused_stream_is_a_plain_error(live: Live) -> None:
    error = refused(live, COMPLETIONS, {"prompt": "hi", "stream": True, "top_p": 2})
    assert error["param"] == "top_p"


def test_another_content_type(live: Live) -> None:
    response = live.http.post(COMPLETIONS, data={"prompt": "hi"})
    assert response.status_code == 415
    assert "application/json" in response.json()["error"]["message"]


def test_a_step_that_fails_is_a_500_without_its_reason(live: Live) -> None:
    response = live.post(COMPLETIONS, {"prompt": [1, 255]})
    assert response.status_code == 500
    assert "255" not in response.text
    assert live.complete(prompt="fine", max_tokens=1)["usage"]["completion_tokens"] == 1


def test_a_fault_of_one_sequence_is_a_500_of_its_request_alone() -> None:
    with running(model="slow") as live, begun(live) as lines:
        error = refused(live, COMPLETIONS, {"prompt": [1, FAULTY]}, status=500)
        assert (error["code"], error["message"]) == ("engine_error", BROKEN_NUMBERS)
        assert '"error"' not in next(line for line in lines if line.startswith("data: "))
