"""`POST /api/chat`: its lines, options, calls, thoughts, formats and refusals."""

import json
import re
from typing import Any

import pytest

from service.access.record import Policy, RequestRecord
from service.api.ollama.generation import OllamaChatBody
from service.api.ollama.shape import OllamaChatShape
from service.generation.choice import Delta
from service.generation.usage import Usage, timings
from service.structured.call_reader import CallReader
from service.structured.call_style import STYLES
from tests.service.api.ollama.sent import USER, error_of, lines, whole
from tests.service.live import FakeChat, Live, answer, begun, hurried, running
from tests.service.structured.call_texts import ARGUMENTS, TEXTS
from tests.waiting import eventually

CHAT = "/api/chat"
RECORD = RequestRecord("1", "POST", CHAT, CHAT, Policy())
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
NO_TIME = timings(Usage(), None, 0, 0, 0)
DURATIONS = ("total_duration", "load_duration", "prompt_eval_duration", "eval_duration")
THINKS = "<think>\nHm.\n</think>\n\nYes."


class ThinkingChat(FakeChat):
    reasoning_style = "tags"


def test_a_whole_answer(live: Live) -> None:
    reply = whole(live, CHAT, model="fake", messages=USER, options={"num_predict": 5})
    assert reply.pop("timings")["predicted_n"] == 5
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", reply.pop("created_at"))
    spent = [reply.pop(name) for name in DURATIONS]
    assert all(isinstance(value, int) for value in spent)
    assert spent[0] >= max(spent[1:])
    assert reply == {
        "model": "fake",
        "message": {"role": "assistant", "content": answer("u:hi;a:", 5)},
        "done": True,
        "done_reason": "length",
        "prompt_eval_count": 7,
        "eval_count": 5,
    }


def test_a_stream_is_the_default_and_its_last_line_has_the_counts(live: Live) -> None:
    for more in ({}, {"stream": True}, {"stream": None}):
        *parts, last = lines(live, CHAT, model="fake", messages=USER, options={"num_predict": 20}, **more)
        assert "".join(part["message"]["content"] for part in parts) == answer("u:hi;a:", 20)
        assert all(part.keys() == {"model", "created_at", "message", "done"} for part in parts)
        assert last["message"] == {"role": "assistant", "content": ""}
        assert (last["done_reason"], last["prompt_eval_count"], last["eval_count"]) == ("length", 7, 20)
        assert all(last[name] >= 0 for name in DURATIONS)


def test_a_name_may_have_the_tag_of_ollama(live: Live) -> None:
    assert whole(live, CHAT, model="org/alias:latest", messages=USER)["model"] == "org/alias:latest"
    assert '"fake:7b" does not exist here' in error_of(live, CHAT, {"model": "fake:7b", "messages": USER}, 404)
    assert "other" in error_of(live, CHAT, {"model": "other:latest", "messages": USER}, 404)
    assert live.post("/v1/completions", {"model": "fake:latest", "prompt": "hi"}).status_code == 404


def test_options_are_those_of_other_apis() -> None:
    """Home Assistant writes integers with a fraction of 0, and a seed below 0 is random."""
    body = OllamaChatBody.model_validate_json(
        '{"messages": [{"role": "user", "content": "hi"}], "options": {"temperature": 0.5, "top_p": 0.9, "top_k": 3.0,'
        '"min_p": 0.1, "seed": 7.0, "stop": ["x"], "num_predict": -1, "repeat_penalty": 1.1, "presence_penalty": 1,'
        '"frequency_penalty": -1, "num_ctx": 512.0}}'
    )
    chat = body.chat()
    assert chat.options.sampling == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 3,
        "min_p": 0.1,
        "seed": 7,
        "repetition_penalty": 1.1,
        "presence_penalty": 1,
        "frequency_penalty": -1,
    }
    assert (chat.options.stops, chat.max_tokens) == (("x",), None)
    for seed in (-1, None):
        body = OllamaChatBody.model_validate({"messages": USER, "options": {"seed": seed, "num_predict": 3}})
        assert body.chat().options.sampling == {}
        assert body.chat().max_tokens == 3


def test_a_stop_string_and_a_seed(live: Live) -> None:
    options = {"num_predict": 30, "temperature": 0}
    text = whole(live, CHAT, messages=USER, options=options)["message"]["content"]
    reply = whole(live, CHAT, messages=USER, options={**options, "stop": text[4]})
    assert (reply["message"]["content"], reply["done_reason"]) == (text[: text.index(text[4])], "stop")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"num_ctx": 513}, "options.num_ctx must be at most the context of 512, got 513"),
        ({"num_predict": 600}, "7 in the prompt and 600 for the answer (options.num_predict)"),
        ({"num_predict": -3}, "options.num_predict"),
        ({"temperature": 3}, "options.temperature must be"),
        ({"top_k": 1.5}, "options.top_k must be an integer"),
        ({"mirostat": 1}, "options.mirostat is not supported"),
        ({"repeat_last_n": -2}, "options.repeat_last_n must be greater than or equal to -1"),
        ({"max_tokens": 5}, "options: unknown field 'max_tokens'"),
    ],
)
def test_what_an_option_cannot_be(live: Live, options: dict[str, Any], words: str) -> None:
    assert words in error_of(live, CHAT, {"messages": USER, "options": options})


@pytest.mark.parametrize("headers", [{}, {"content-type": "application/octet-stream"}, {"content-type": "text/plain"}])
def test_a_body_may_have_any_content_type(live: Live, headers: dict[str, str]) -> None:
    """As at Ollama: clients send none, or another. The pages of others may not call all the same."""
    bodies = {CHAT: {"messages": USER, "stream": False}, "/api/generate": {"prompt": "hi", "stream": False}}
    bodies |= {"/api/embed": {"input": "hi"}, "/api/embeddings": {"prompt": "hi"}, "/api/show": {"model": "fake"}}
    for path, body in bodies.items():
        content = json.dumps(body)
        assert live.http.post(path, content=content, headers=headers).status_code == 200, path
        for page in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
            assert live.http.post(path, content=content, headers=headers | page).status_code == 403, path
    assert live.http.post("/v1/chat/completions", content="{}", headers=headers).status_code == 415


def test_options_of_ollamas_machine_are_named_and_pass(live: Live) -> None:
    options = {"num_thread": 3, "num_gpu": 1.0, "use_mmap": True, "num_ctx": 512, "num_predict": 1, "mirostat": 0}
    options |= {"repeat_last_n": 64, "typical_p": 0.7}
    response = live.post(CHAT, {"messages": USER, "options": options, "num_predict": 9, "stream": False})
    assert response.status_code == 200
    named = set(response.headers["x-noria-ignored"].split(", "))
    names = ("num_thread", "num_gpu", "use_mmap", "num_ctx", "repeat_last_n", "typical_p")
    assert named == {*(f"options.{name}" for name in names), "num_predict"}


def test_an_answer_may_continue_a_message(live: Live) -> None:
    begun = [*USER, {"role": "assistant", "content": "So"}]
    reply = whole(live, CHAT, messages=begun, options={"num_predict": 5})
    assert reply["message"]["content"] == answer("u:hi;a:So", 5)


def test_logprobs(live: Live) -> None:
    ask: dict[str, Any] = {"messages": USER, "options": {"num_predict": 2}, "logprobs": True, "top_logprobs": 2}
    text = answer("u:hi;a:", 2)
    reply = whole(live, CHAT, **ask)
    first = reply["logprobs"][0]
    assert [item["token"] for item in reply["logprobs"]] == list(text)
    assert first.keys() == {"token", "logprob", "bytes", "top_logprobs"}
    assert first["top_logprobs"][0] == {name: first[name] for name in ("token", "logprob", "bytes")}
    assert len(first["top_logprobs"]) == 2
    *parts, last = lines(live, CHAT, **ask)
    assert [item for part in parts for item in part["logprobs"]] == reply["logprobs"]
    assert "logprobs" not in last
    assert "logprobs" in error_of(live, CHAT, {**ask, "logprobs": None})


def test_a_thought_is_beside_the_text() -> None:
    messages = [{"role": "user", "content": THINKS}]
    with running(model="recite", chat=ThinkingChat()) as live:
        for think in (None, True, "high"):
            said = whole(live, CHAT, messages=messages, think=think)["message"]
            assert (said["thinking"], said["content"]) == ("Hm.", "Yes.")
        *parts, _ = lines(live, CHAT, messages=messages)
        assert "".join(part["message"].get("thinking", "") for part in parts) == "Hm."
        assert "".join(part["message"]["content"] for part in parts) == "Yes."
        history = [*messages, {"role": "assistant", "content": "Yes.", "thinking": "Hm."}, *USER]
        assert whole(live, CHAT, messages=history)["message"]["content"] == "hi"


def test_a_model_without_reasoning_says_that_it_does_not_think(live: Live) -> None:
    response = live.post(CHAT, {"messages": USER, "think": True, "stream": False, "options": {"num_predict": 1}})
    assert response.headers["x-noria-ignored"] == "think"
    assert "think must be" in error_of(live, CHAT, {"messages": USER, "think": "lots"})


def test_format(live: Live) -> None:
    """The fake model cannot follow a grammar: the body says what the constraint is."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for form, told in (("json", "object"), (schema, schema), ("", None), (None, None)):
        constraint = OllamaChatBody.model_validate({"messages": USER, "format": form}).chat().constraint
        assert (constraint is None) == (told is None)
        assert constraint is None or constraint.fields == ("format",)
    assert 'format must be "json" or a JSON schema' in error_of(live, CHAT, {"messages": USER, "format": "yaml"})
    assert "format" in error_of(live, CHAT, {"messages": USER, "format": {"type": "object", "not": {}}})


# Tools


@pytest.mark.parametrize("style", TEXTS)
def test_a_call_is_sent_whole(style: str) -> None:
    """Its arguments are an object, and no line has a part of it."""
    for step in (1, 7, 1000):
        shape = OllamaChatShape("m", RECORD, blocks=CallReader(STYLES[style]))
        text, said = TEXTS[style]
        deltas = [Delta(text[at : at + step]) for at in range(0, len(text), step)]
        made = [line for delta in [*deltas, Delta(finish="stop")] for line in shape.chunks(0, delta, Usage())]
        calls = [call for line in made for call in line["message"].get("tool_calls", ())]
        assert [call["function"]["arguments"] for call in calls] == [json.loads(ARGUMENTS), {}]
        assert [call["function"]["index"] for call in calls] == [0, 1]
        assert "".join(line["message"]["content"] for line in made) == said
        assert made[-1]["done_reason"] == "stop"
        assert "tool_calls" not in made[-1]["message"]
        again = OllamaChatShape("m", RECORD, blocks=CallReader(STYLES[style]))
        message = again.whole([Delta(text, finish="stop")], Usage(), NO_TIME)["message"]
        assert [call["function"] for call in message["tool_calls"]] == [call["function"] for call in calls]


def test_a_call_that_is_cut_short_is_left_out() -> None:
    shape = OllamaChatShape("m", RECORD, blocks=CallReader(STYLES["hermes"]))
    text = '<tool_call>\n{"name": "f", "arguments": {"a": '
    message = shape.whole([Delta(text, finish="length")], Usage(), NO_TIME)
    assert message["message"] == {"role": "assistant", "content": ""}
    assert message["done_reason"] == "length"


def test_a_call_goes_through_the_server() -> None:
    call = '<tool_call>\n{"name": "weather", "arguments": {"a": 1}}\n</tool_call>'
    with running(model="recite") as live:
        said = whole(live, CHAT, messages=[{"role": "user", "content": call}], tools=TOOLS)
    (made,) = said["message"]["tool_calls"]
    assert made["function"] == {"index": 0, "name": "weather", "arguments": {"a": 1}}
    assert said["done_reason"] == "stop"


def called(*names: str, **ids: str) -> dict[str, Any]:
    calls = [{"id": ids.get(name), "function": {"name": name, "arguments": {}}} for name in names]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(content: str, **more: str) -> dict[str, Any]:
    return {"role": "tool", "content": content, **more}


@pytest.mark.parametrize(
    ("messages", "answered"),
    [
        ([called("f", "g"), result("1"), result("2")], ["call_1_0", "call_1_1"]),
        ([called("f", "g"), result("2", tool_name="g"), result("1", tool_name="f")], ["call_1_1", "call_1_0"]),
        ([called("f", "f"), result("1", tool_name="f"), result("2", tool_name="f")], ["call_1_0", "call_1_1"]),
        ([called("f", f="a"), result("1", tool_call_id="a")], ["a"]),
        ([called("f", "g", g="b"), result("2", tool_call_id="b"), result("1")], ["b", "call_1_0"]),
        ([called("f"), result("1", tool_call_id="other")], ["other"]),
        ([result("1")], ["call_1"]),
    ],
)
def test_results_answer_calls(messages: list[dict[str, Any]], answered: list[str]) -> None:
    body = OllamaChatBody.model_validate({"messages": [*USER, *messages]})
    plain = body.chat().messages
    assert [message["tool_call_id"] for message in plain if message["role"] == "tool"] == answered


def test_tools_that_cannot_be(live: Live) -> None:
    assert "two functions of the name" in error_of(live, CHAT, {"messages": USER, "tools": TOOLS * 2})
    image = [{"role": "user", "content": "a", "images": ["AAAA"]}]
    assert "messages[0].images[0] is not supported" in error_of(live, CHAT, {"messages": image})
    assert "role" in error_of(live, CHAT, {"messages": [{"role": "judge", "content": "a"}]})


def test_a_client_that_leaves_ends_its_request() -> None:
    with running(model="slow") as live:
        with live.http.stream("POST", CHAT, json={"messages": USER}) as response:
            assert next(response.iter_lines()).startswith("{")
        eventually(lambda: live.metric("noria_requests_total", outcome="abort") == 1, "it was aborted")


def test_a_silent_stream_sends_spaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line is still JSON, and there is no empty one: the package for Python reads each."""
    monkeypatch.setattr("service.http.sse.KEEP_ALIVE_SECONDS", 0.05)
    with (
        running(model="slow", max_sequences=1) as live,
        begun(live),
        live.http.stream("POST", CHAT, json={"messages": USER, "options": {"num_predict": 1}}) as reply,
    ):
        pieces = reply.iter_raw()
        assert next(pieces) == b" "
        with hurried():
            text = b"".join(pieces).decode()
    assert [line.strip()[0] for line in text.splitlines()] == ["{", "{"]
