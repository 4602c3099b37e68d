"""The requests that Open WebUI's backend sends, against a live server.

Open WebUI itself is too large for a test. These requests follow its version 0.12.4, `open_webui/routers/openai.py`:
`get_models_request`, `generate_chat_completion`, `convert_to_responses_payload`, and `routers/tasks.py` for titles,
tags and follow-ups, and `routers/audio.py` for speech. The answers are read as `utils/middleware.py` reads them.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from asking import BASE, HEARING, HEARING_BASE, MODEL, RECORDING, STORY, Aborted, user
from asking import COUNT as COUNTING

HEADERS = {"Content-Type": "application/json", "Authorization": "Bearer none"}
Json = dict[str, Any]
SYSTEM = {"role": "system", "content": "You are terse."}
COUNT = user(COUNTING)
STREAM: Json = {"stream": True, "model": MODEL, "stream_options": {"include_usage": True}}
SHORT: Json = {"temperature": 0.0, "max_tokens": 16}
# What a user may set in the panel of a chat's controls and OpenAI's API has too, or servers of open models.
CONTROLS: Json = {
    "temperature": 0.8,
    "max_tokens": 16,
    "top_k": 40,
    "top_p": 0.9,
    "min_p": 0.05,
    "seed": 7,
    "stop": ["</answer>"],
    "frequency_penalty": 0.1,
    "presence_penalty": 0.1,
    "logit_bias": {"42": -100, "43": 5},
}
# Two of its own tools: it sends them in every chat. `clean_properties` leaves defaults and drops null.
TIME = {
    "name": "get_current_timestamp",
    "description": "Get the current Unix timestamp in seconds.",
    "parameters": {"properties": {}, "type": "object"},
}
AGO = {
    "name": "calculate_timestamp",
    "description": "Get the timestamp of a time ago.",
    "parameters": {
        "properties": {
            "days_ago": {"default": 0, "description": "Number of days ago", "type": "integer"},
            "weeks_ago": {"default": 0, "description": "Number of weeks ago", "type": "integer"},
        },
        "type": "object",
    },
}
TOOLS = [{"type": "function", "function": TIME}, {"type": "function", "function": AGO}]


@pytest.fixture
def backend() -> Iterator[httpx.Client]:
    with httpx.Client(base_url=BASE, headers=HEADERS, timeout=120) as client:
        yield client


def streamed(backend: httpx.Client, path: str, body: Json) -> list[Json]:
    """The JSON of a stream's events."""
    with backend.stream("POST", path, content=json.dumps(body)) as response:
        assert response.headers["content-type"].startswith("text/event-stream"), response.read()
        lines = [line for line in response.iter_lines() if line.startswith("data:")]
    return [json.loads(line.removeprefix("data:")) for line in lines if "[DONE]" not in line]


def read(chunks: list[Json]) -> tuple[str, list[Json], Json]:
    """Text, tool calls and usage, as the middleware collects them."""
    deltas = [choice["delta"] for chunk in chunks for choice in chunk.get("choices", [])]
    calls: dict[int, Json] = {}
    for part in (part for delta in deltas for part in delta.get("tool_calls") or []):
        if part["index"] not in calls:
            calls[part["index"]] = {**part, "function": {"arguments": "", **part["function"]}}
        else:
            calls[part["index"]]["function"]["arguments"] += part["function"].get("arguments", "")
    text = "".join(delta.get("content") or "" for delta in deltas)
    return text, list(calls.values()), next(chunk["usage"] for chunk in chunks if chunk.get("usage"))


def answered(backend: httpx.Client, path: str, body: Json) -> Json:
    response = backend.post(path, content=json.dumps(body))
    assert response.status_code == 200, response.text
    return response.json()


def test_the_connection_is_verified_and_its_models_listed(backend: httpx.Client) -> None:
    reply = backend.get("/models")
    assert reply.status_code == 200
    assert [model["id"] for model in reply.json()["data"]] == [MODEL]


@pytest.mark.parametrize("controls", [SHORT, CONTROLS], ids=["short", "all controls"])
def test_a_chat(backend: httpx.Client, controls: Json) -> None:
    text, calls, usage = read(
        streamed(backend, "/chat/completions", {**STREAM, "messages": [SYSTEM, COUNT], **controls})
    )
    assert text
    assert not calls
    assert 0 < usage["completion_tokens"] <= 16
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_an_answer_is_continued(backend: httpx.Client) -> None:
    """The button Continue sends the answer so far as the last message."""
    begun = {"role": "assistant", "content": "One, two, three,"}
    assert read(streamed(backend, "/chat/completions", {**STREAM, "messages": [COUNT, begun], **SHORT}))[0]


def test_a_tool_is_called_and_answers(backend: httpx.Client) -> None:
    request = {**STREAM, "temperature": 0, "max_tokens": 60, "tools": TOOLS}
    question = user("What time is it?")
    forced = {**request, "messages": [SYSTEM, question], "tool_choice": "required", "parallel_tool_calls": False}
    text, calls, _ = read(streamed(backend, "/chat/completions", forced))
    (call,) = calls
    assert call["function"]["name"] in (TIME["name"], AGO["name"])
    json.loads(call["function"]["arguments"])
    assistant = {"role": "assistant", "content": text, "tool_calls": calls}  # with their indices
    result = {"role": "tool", "tool_call_id": call["id"], "content": "1795000000"}
    text, more, _ = read(
        streamed(backend, "/chat/completions", {**request, "messages": [SYSTEM, question, assistant, result]})
    )
    assert text or more


def test_a_title(backend: httpx.Client) -> None:
    """Titles, tags, follow-ups, queries and image prompts are one user message, not streamed."""
    ask = 'Write a title as JSON, such as {"title": "Count"}, for this chat: USER: Count. ASSISTANT: One, two, three.'
    body = {"model": MODEL, "messages": [user(ask)], "stream": False}
    body |= {"max_tokens": 1000, "temperature": 0}
    assert answered(backend, "/chat/completions", body)["choices"][0]["message"]["content"]


def test_a_connection_of_type_responses(backend: httpx.Client) -> None:
    def message(role: str, text: str) -> Json:
        kind = "output_text" if role == "assistant" else "input_text"
        return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}

    tools = [{"type": "function", **tool, "strict": False} for tool in (TIME, AGO)]
    items = [message("user", "Hello."), message("assistant", "Hello!"), message("user", "What time is it?")]
    body = {"stream": True, "model": MODEL, "tools": tools, "instructions": "You are terse.", "max_output_tokens": 60}
    forced = {"tool_choice": {"type": "function", "name": TIME["name"]}, "temperature": 0}
    events = streamed(backend, "/responses", {**body, **forced, "input": items})
    kinds = [event["type"] for event in events]
    assert "response.function_call_arguments.done" in kinds
    (call,) = events[-1]["response"]["output"]
    kept = {key: call[key] for key in ("type", "call_id", "name", "arguments", "id")}
    result = {
        "type": "function_call_output",
        "call_id": call["call_id"],
        "output": [{"type": "input_text", "text": "9"}],
    }
    events = streamed(backend, "/responses", {**body, "input": [*items, kept, result], "temperature": 0})
    assert events[-1]["type"] in ("response.completed", "response.incomplete")
    assert events[-1]["response"]["usage"]["output_tokens"]
    plain = {"model": MODEL, "stream": False, "input": items, "max_output_tokens": 16, "temperature": 0}
    assert answered(backend, "/responses", plain)["output"][0]["content"][0]["text"]


def test_documents_are_embedded(backend: httpx.Client) -> None:
    data = answered(backend, "/embeddings", {"input": ["One.", "Another text."], "model": MODEL})["data"]
    assert len(data[0]["embedding"]) == len(data[1]["embedding"]) > 1


@pytest.mark.parametrize("language", [None, "en"])
def test_speech_is_written_down(language: str | None) -> None:
    """Its engine "openai" sends the language only if a user has chosen one."""
    data = {"model": HEARING} | ({"language": language} if language else {})
    with httpx.Client(headers={"Authorization": "Bearer none"}, timeout=120) as client:
        files = {"file": (RECORDING.name, RECORDING.read_bytes())}
        response = client.post(f"{HEARING_BASE}/audio/transcriptions", files=files, data=data)
    assert response.status_code == 200, response.text
    assert response.json()["text"]


def test_errors_have_the_body_that_it_shows(backend: httpx.Client) -> None:
    for change, status, what in (({"model": "gpt"}, 404, "gpt"), ({"temperature": 9.0}, 400, "temperature")):
        body = json.dumps({**STREAM, "messages": [COUNT], **change})
        response = backend.post("/chat/completions", content=body)
        assert response.status_code == status
        assert what in response.json()["error"]["message"]


def test_the_stop_button_aborts_the_stream(backend: httpx.Client, is_aborted: Aborted) -> None:
    body = {**STREAM, "messages": [user(STORY)], "temperature": 0}
    with is_aborted(), backend.stream("POST", "/chat/completions", content=json.dumps(body)) as response:
        next(line for line in response.iter_lines() if '"content"' in line)
