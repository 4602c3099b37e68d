"""The Responses API, through the openai package and beside it."""

import json
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import openai
import pytest
from openai.types.responses import Response as ResponseModel
from openai.types.responses import ResponseIncludable, ServiceTier, ToolParam

from service.api.responses.body import ResponsesBody
from service.api.responses.shape import ResponseShape, part_of
from service.api.responses.tools import HOSTED
from service.generation.choice import Delta, Scored
from service.generation.usage import Usage, timings
from service.structured.call_reader import CallReader
from service.structured.call_style import STYLES
from tests.fakes import IntegerTokenizer
from tests.service.live import Live, answer
from tests.service.structured.call_texts import ARGUMENTS, TEXTS

NO_TIME = timings(Usage(), None, 0, 0, 0)

PATH = "/v1/responses"
PROMPT = "u:hi;a:"
TOOL = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}
CALL = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": ARGUMENTS}
BODY = ResponsesBody.model_validate({"input": "x"})
KINDS_BEFORE = ["created", "in_progress", "output_item.added", "content_part.added"]
KINDS_AFTER = ["output_text.done", "content_part.done", "output_item.done"]


@pytest.fixture
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_response(client: openai.OpenAI) -> None:
    reply = client.responses.create(model="fake", input="hi", max_output_tokens=5, temperature=0.5, store=False)
    assert reply.output_text == answer(PROMPT, 5)
    assert (reply.status, reply.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (reply.temperature, reply.top_p, reply.model, reply.store) == (0.5, 1.0, "fake", False)
    assert (reply.usage.input_tokens, reply.usage.output_tokens, reply.usage.total_tokens) == (7, 5, 12)
    assert reply.output[0].status == "incomplete"


def test_what_was_said_can_be_sent_back(client: openai.OpenAI) -> None:
    first = client.responses.create(model="fake", input="hi", max_output_tokens=5)
    items: list[Any] = [
        {"role": "developer", "content": "x"},
        {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        *first.output,
        {"type": "message", "role": "user", "content": "go on"},
    ]
    reply = client.responses.create(model="fake", instructions="be kind", input=items, max_output_tokens=5)
    assert reply.output_text == answer(f"s:be kind;d:x;u:hi;a:{first.output_text};u:go on;a:", 5)
    assert reply.instructions == "be kind"


def test_events(client: openai.OpenAI) -> None:
    with client.responses.create(model="fake", input="hi", max_output_tokens=20, stream=True) as stream:
        events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert kinds[:4] == KINDS_BEFORE
    assert kinds[-4:] == [*KINDS_AFTER, "incomplete"]
    deltas = events[4:-4]
    assert {event.type for event in deltas} == {"response.output_text.delta"}
    text = "".join(event.delta for event in deltas)
    assert text == answer(PROMPT, 20) == events[-4].text == events[-1].response.output_text
    assert events[-1].response.usage.output_tokens == 20
    item = events[2].item.id
    assert {event.item_id for event in (events[3], *deltas, *events[-4:-2])} == {item}
    assert events[-1].response.output[0].id == item
    assert events[0].response.id == events[-1].response.id


def test_the_streaming_helper_and_an_answer_that_ends(live: Live, client: openai.OpenAI) -> None:
    word = next(word for word in map(str, range(200)) if any(ord(char) % 29 == 0 for char in spoken(word)))
    with client.responses.stream(model="fake", input=word, temperature=0) as stream:
        final = stream.get_final_response()
    assert final.status == "completed"
    assert final.output_text
    assert spoken(word).startswith(final.output_text)
    events = live.events(PATH, {"input": word, "temperature": 0})
    assert events[-1]["type"] == "response.completed"
    assert events[-1]["response"]["completed_at"] >= events[-1]["response"]["created_at"]
    assert events[-1]["timings"]["predicted_n"] == events[-1]["response"]["usage"]["output_tokens"]


def spoken(word: str) -> str:
    return answer(f"u:{word};a:", 200)


SCORES: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


def test_log_probabilities(client: openai.OpenAI) -> None:
    """The fake model gives each token -0.5, and the token after it -1.5."""
    asked: dict[str, Any] = {"model": "fake", "input": "hi", "max_output_tokens": 5}
    reply = client.responses.create(**asked, **SCORES)
    scores = reply.output[0].content[0].logprobs
    text = answer(PROMPT, 5)
    assert "".join(score.token for score in scores) == reply.output_text == text
    assert [(score.logprob, score.bytes) for score in scores] == [(-0.5, [ord(char)]) for char in text]
    assert [(top.token, top.logprob) for top in scores[0].top_logprobs] == [
        (text[0], -0.5),
        (chr(ord(text[0]) + 1), -1.5),
    ]
    assert reply.top_logprobs == 2
    with client.responses.create(**asked, **SCORES, stream=True) as stream:
        events = list(stream)
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert all("".join(score.token for score in event.logprobs) == event.delta for event in deltas)
    done = next(event for event in events if event.type == "response.output_text.done")
    assert [score.model_dump() for score in done.logprobs] == [score.model_dump() for score in scores]
    plain = client.responses.create(**asked, include=["message.output_text.logprobs"]).output[0].content[0]
    assert [score.top_logprobs for score in plain.logprobs] == [[]] * 5
    assert client.responses.create(**asked).output[0].content[0].logprobs == []


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_log_probabilities_are_those_of_the_text_alone(size: int) -> None:
    """Those of a thought and of calls are left out."""
    text, call = "Let me see. ", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    shape = ResponseShape(BODY, "m", blocks=CallReader(STYLES["hermes"]), tokenizer=IntegerTokenizer())
    thought = tuple(Scored(ord("t"), -0.1, (), 0) for _ in range(4))
    spoken = tuple(Scored(ord(char), -0.2, (), at) for at, char in enumerate(text + call))
    events = shape.chunks(0, Delta(thought="tt", scored=thought[:2]), Usage(reasoning=2))
    events += shape.chunks(0, Delta(text[:1], (*thought[2:], *spoken[:1]), thought="tt"), Usage(reasoning=4))
    for at in range(1, len(text + call), size):
        delta = Delta((text + call)[at : at + size], spoken[at : at + size])
        events += shape.chunks(0, delta, Usage(reasoning=4))
    events += shape.chunks(0, Delta(finish="stop"), Usage(reasoning=4))
    message = next(item for item in events[-1]["response"]["output"] if item["type"] == "message")
    assert message["content"][0]["text"] == text
    assert "".join(score["token"] for score in message["content"][0]["logprobs"]) == text
    ResponseModel.model_validate(events[-1]["response"])


def test_the_format_of_an_answer_is_accepted_and_repeated(live: Live) -> None:
    """The fake model ignores the format. Tests with the real engine check what it constrains."""
    for text_format in ({"type": "json_object"}, {"type": "json_schema", "name": "x", "schema": {"type": "object"}}):
        reply = live.post(PATH, {"input": "hi", "max_output_tokens": 3, "text": {"format": text_format}})
        assert reply.status_code == 200, reply.text
        assert reply.json()["text"]["format"] == text_format


def test_defaults_pass(live: Live) -> None:
    body = {
        "input": "hi",
        "max_output_tokens": 3,
        "store": None,
        "previous_response_id": None,
        "include": [],
        "tools": [],
        "tool_choice": "auto",
        "truncation": "disabled",
        "text": {"format": {"type": "text"}, "verbosity": "medium"},
        "metadata": {},
        "prompt_cache_key": "k",
        "stream_options": {"include_obfuscation": False},
    }
    response = live.post(PATH, body)
    assert response.status_code == 200, response.text
    assert response.json()["store"] is True
    assert "x-noria-ignored" not in response.headers


PHASED = [
    {"type": "message", "role": "assistant", "content": "a", "phase": "commentary"},
    {"role": "user", "content": "b"},
]


@pytest.mark.parametrize(
    ("fields", "ignored", "echo"),
    [
        ({"metadata": {"run": "7"}}, None, {"metadata": {"run": "7"}}),
        ({"max_tool_calls": 3}, None, {"max_tool_calls": 3}),
        ({"input": PHASED}, None, {}),
        ({"safety_identifier": "u"}, None, {}),
        ({"include": [*get_args(ResponseIncludable)]}, None, {}),
        ({"prompt_cache_options": {"mode": "explicit", "ttl": "12h"}, "prompt_cache_retention": "24h"}, None, {}),
        ({"reasoning": {"mode": "standard", "context": "auto", "summary": "auto"}}, None, {}),
        *(({"service_tier": tier}, None, {"service_tier": "default"}) for tier in get_args(get_args(ServiceTier)[0])),
        ({"store": True}, None, {"store": True}),
        ({"truncation": "auto"}, None, {"truncation": "auto"}),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation", {}),
        *(
            ({"tools": [TOOL, {"type": kind, "x": [1]}]}, "tools[1]", {"tools": [TOOL | {"description": None}]})
            for kind in HOSTED
        ),
        ({"tools": [TOOL | {"defer_loading": True}]}, "tools[0].defer_loading", {}),
    ],
)
def test_published_values_pass_and_what_has_no_effect_is_named(
    live: Live, fields: dict[str, Any], ignored: str | None, echo: dict[str, Any]
) -> None:
    response = live.post(PATH, {"input": "hi", "max_output_tokens": 3} | fields)
    assert response.status_code == 200, response.text
    assert response.headers.get("x-noria-ignored") == ignored
    reply = response.json()
    assert {name: reply[name] for name in echo} == echo
    ResponseModel.model_validate(reply)


def test_all_published_tools_are_known() -> None:
    """The types of the package's tools are those that the server takes."""
    published = {
        kind
        for tool in get_args(ToolParam)
        for kind in get_args(get_args(get_type_hints(tool, include_extras=True)["type"])[0])
    }
    assert published == {*HOSTED, "function", "custom", "namespace"}


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"input": 5}, "input", ["5"]),
        ({"input": None}, "input", ["required"]),
        ({"input": [{"type": "computer_call", "id": "x"}]}, "input[0].type", ['"message", "reasoning"']),
        ({"input": [5]}, "input[0]", ["an object", "5"]),
        (
            {"input": [{"type": ["message"], "role": "user", "content": "a"}]},
            "input[0].type",
            ['["message"]', '"reasoning"'],
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input[0].arguments", ["required"]),
        ({"input": [CALL | {"arguments": "{"}]}, "input[0].arguments", ["JSON object"]),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file"}]}]},
            "input[0].content[0].type",
            ['"input_file"', "not supported"],
        ),
        ({"store": "yes"}, "store", ["a boolean", '"yes"']),
        ({"metadata": {"a": 1}}, "metadata.a", ["a string", "1"]),
        ({"metadata": {"a": "x" * 513}}, "metadata.a", ["at most 512"]),
        ({"metadata": {"n" * 65: "x"}}, "metadata." + "n" * 65, ["at most 64"]),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata", ["at most 16"]),
        ({"truncation": "middle"}, "truncation", ['"auto"', '"middle"']),
        ({"text": {"verbosity": "loud"}}, "text.verbosity", ['"low"', '"loud"']),
        ({"service_tier": "slow"}, "service_tier", ['"flex"', '"slow"']),
        ({"prompt_cache_retention": "48h"}, "prompt_cache_retention", ['"24h"', '"48h"']),
        ({"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options.ttl", ['"12h"', '"1h"']),
        ({"prompt_cache_options": {"prewarm": True}}, "prompt_cache_options.prewarm", ["false", "true"]),
        ({"max_tool_calls": 0}, "max_tool_calls", ["1", "0"]),
        ({"stream_options": {"include_obfuscation": 1}}, "stream_options.include_obfuscation", ["true", "1"]),
        ({"input": [{"role": "user", "content": "a", "phase": "x"}]}, "input[0].phase", ['"commentary"', '"x"']),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode", ['"standard"', '"pro"']),
        ({"reasoning": {"context": "current_turn"}}, "reasoning.context", ['"auto"', '"current_turn"']),
        (
            {"tools": [TOOL], "tool_choice": {"type": "custom", "name": "weather"}},
            "tool_choice",
            ['"weather"', "type custom"],
        ),
        (
            {"tools": [{"type": "custom", "name": "patch"}], "tool_choice": {"type": "function", "name": "patch"}},
            "tool_choice",
            ['"patch"', "type function"],
        ),
        (
            {
                "tools": [TOOL],
                "tool_choice": {
                    "type": "allowed_tools",
                    "mode": "auto",
                    "tools": [{"type": "custom", "name": "weather"}],
                },
            },
            "tool_choice",
            ["type custom"],
        ),
        ({"tools": [{"type": "mcp"}], "tool_choice": "required"}, "tool_choice", ["there are none"]),
        (
            {"tools": [{"type": "mcp"}], "tool_choice": {"type": "mcp", "server_label": "x"}},
            "tool_choice.type",
            ["mcp"],
        ),
        ({"previous_response_id": "resp_1"}, "previous_response_id", ["resp_1", "stored"]),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id", ["msg_1", "stored"]),
        ({"top_logprobs": 2}, "top_logprobs", ["include", "2"]),
        (SCORES | {"top_logprobs": 21}, "top_logprobs", ["20", "21"]),
        ({"include": ["everything"]}, "include[0]", ["reasoning.encrypted_content", '"everything"']),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort", ['"minimal"', '"huge"']),
        ({"tools": [{"type": "hosted"}]}, "tools[0].type", ['"function"', '"hosted"', "runs no tools"]),
        ({"tools": [{"type": "custom", "name": "a b"}]}, "tools[0].name", ['"a b"']),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type", ['"json_schema"', '"grammar"']),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", ["json_schema"]),
        ({"text": {"format": {"type": "text", "schema": {}}}}, "text.format.schema", ["json_schema"]),
        ({"background": True, "store": False}, "background", ["store", "false"]),
        ({"stop": "x"}, "stop", ["unknown field 'stop'"]),
    ],
)
def test_refusals(live: Live, body: dict[str, Any], param: str, words: list[str]) -> None:
    response = live.post(PATH, {"input": "hi", **body})
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert all(word in error["message"] for word in words), error


def test_calls_and_outputs_are_chats_messages() -> None:
    items = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "Let me see."},
        CALL,
        CALL | {"call_id": "call_2", "status": "completed", "id": "fc_2", "async_": None, "parsed_arguments": {}},
        {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
        {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "dry"}]},
        CALL | {"call_id": "call_3"},
    ]
    body = ResponsesBody.model_validate({"input": items, "tools": [TOOL]})
    chat = body.chat()
    call = {"type": "function", "function": {"name": "weather", "arguments": json.loads(ARGUMENTS)}}
    assert chat.messages == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "Let me see.",
            "tool_calls": [call | {"id": "call_1"}, call | {"id": "call_2"}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "call_2", "content": "dry"},
        {"role": "assistant", "content": "", "tool_calls": [call | {"id": "call_3"}]},
    ]


def test_the_response_repeats_what_may_be_called(live: Live) -> None:
    body = {"input": "hi", "max_output_tokens": 3, "tools": [TOOL], "parallel_tool_calls": False}
    reply = live.post(PATH, body).json()
    assert (reply["tools"], reply["tool_choice"], reply["parallel_tool_calls"]) == (
        [TOOL | {"description": None}],
        "auto",
        False,
    )


def built(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The output that a client makes of a response's events."""
    items: list[dict[str, Any]] = []
    texts: list[str] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert event["output_index"] == len(items)
            items.append(event["item"])
            texts.append("")
        elif kind.endswith(".delta"):
            assert event["item_id"] == items[-1]["id"]
            texts[-1] += event["delta"]
        elif kind in ("output_text.done", "function_call_arguments.done"):
            assert texts[-1] == event.get("text", event.get("arguments"))
    return [
        item | ({"content": [part_of(item, text)]} if item["type"] == "message" else {"arguments": text})
        for item, text in zip(items, texts, strict=True)
    ]


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_calls_become_items(style: str, size: int) -> None:
    whole, text = TEXTS[style]
    shape = ResponseShape(BODY, "m", blocks=CallReader(STYLES[style]))
    parts = [whole[at : at + size] for at in range(0, len(whole), size)]
    events = shape.opening(0, Usage()) + [event for part in parts for event in shape.chunks(0, Delta(part), Usage())]
    events += shape.chunks(0, Delta(finish="stop"), Usage())
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    output = events[-1]["response"]["output"]
    assert [item | {"status": "completed"} for item in built(events)] == output
    assert [item["content"][0]["text"] for item in output if item["type"] == "message"] == ([text] if text else [])
    calls = [item for item in output if item["type"] == "function_call"]
    assert [(call["name"], call["arguments"]) for call in calls] == [("weather", ARGUMENTS), ("time.now", "{}")]
    assert len({call["call_id"] for call in calls} - {None}) == 2
    ResponseModel.model_validate(events[-1]["response"])


def test_a_call_that_is_cut_short_is_incomplete() -> None:
    whole, _ = TEXTS["hermes"]
    shape = ResponseShape(BODY, "m", blocks=CallReader(STYLES["hermes"]))
    reply = shape.whole([Delta(whole[: whole.index("city")], finish="length")], Usage(), NO_TIME)
    assert [item["status"] for item in reply["output"]] == ["completed", "incomplete"]
    assert reply["output"][1]["arguments"] == '{"'
    assert reply["status"] == "incomplete"
