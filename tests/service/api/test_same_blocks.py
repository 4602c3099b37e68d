"""A whole answer and its stream hold the same blocks: in every dialect, wherever the answer ends.

The model repeats the last user message: a thought, a text, and two calls. A limit of tokens cuts it at many places, a
stop string in each block. The streams are put together here as clients do it, from their deltas alone.
"""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import pytest
from pydantic_core import from_json

from tests.service.live import FakeChat, Live, running

Json = dict[str, Any]
ARGUMENTS = '{"input": "Oslo, N", "days": 3}'
SAID = (
    f'<think>\nHm, so.\n</think>\n\nI ask. <tool_call>\n{{"name": "weather", "arguments": {ARGUMENTS}}}\n</tool_call>\n'
)
SAID += '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
USER = [{"role": "user", "content": SAID}]
NAMES = ("weather", "now")
OPEN: Json = {"type": "object"}
NESTED = [{"type": "function", "function": {"name": name, "parameters": OPEN}} for name in NAMES]
FLAT = [{"type": "function", "name": name, "parameters": OPEN} for name in NAMES]
CUSTOM = [{"type": "custom", "name": name} for name in NAMES]
BLOCKS = [{"name": name, "input_schema": OPEN} for name in NAMES]
STOPS = ("so.", "ask", '"weat', "Oslo", "now")
"""Strings in a thought, a text, the head of a call, the arguments, and the head of the next call."""
CUTS = ("<thi", "Hm", "</thi", "I a", "<tool", '"weat', "arguments", "Osl", '"da', "3}", "</tool_call>", '"no')
"""Texts after which a limit cuts the answer: in each block, and between two."""
PLACES = [SAID.index(cut) + len(cut) for cut in CUTS]
ENDS = [(n, None) for n in (*PLACES, len(SAID), len(SAID) + 1)] + [(500, stop) for stop in STOPS]


def chat(events: list[Json]) -> Any:
    """The message that the deltas of a chat build."""
    built: Json = {"content": "", "reasoning_content": "", "chunks": "", "calls": [], "finish": None}
    for event in events:
        for choice in event["choices"]:
            delta = choice["delta"]
            content = delta.get("content") or ""
            for chunk in content if isinstance(content, list) else ():
                built["chunks"] += "".join(part["text"] for part in chunk["thinking"])
            built["content"] += content if isinstance(content, str) else ""
            built["reasoning_content"] += delta.get("reasoning_content") or ""
            for piece in delta.get("tool_calls", ()):
                if piece["index"] == len(built["calls"]):
                    built["calls"].append([piece["function"]["name"], ""])
                built["calls"][piece["index"]][1] += piece["function"]["arguments"]
            built["finish"] = choice["finish_reason"] or built["finish"]
    return built


def whole_chat(answer: Json) -> Any:
    (choice,) = answer["choices"]
    message = choice["message"]
    content = message["content"]
    chunks = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return {
        "content": "".join(chunk["text"] for chunk in chunks if chunk["type"] == "text"),
        "reasoning_content": message.get("reasoning_content", ""),
        "chunks": "".join(part["text"] for chunk in chunks for part in chunk.get("thinking", ())),
        "calls": [[call["function"][name] for name in ("name", "arguments")] for call in message.get("tool_calls", ())],
        "finish": choice["finish_reason"],
    }


def message(events: list[Json]) -> Any:
    """The blocks that Anthropic's events build; arguments are read as its packages read them."""
    blocks: list[Json] = []
    texts: list[str] = []
    ending = None
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(event["content_block"])
            texts.append("")
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            texts[event["index"]] += delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""
        elif event["type"] == "message_delta":
            ending = event["delta"]
    fields = {"text": "text", "thinking": "thinking"}
    for block, text in zip(blocks, texts, strict=True):
        block[fields.get(block["type"], "input")] = text if block["type"] in fields else partial(text)
    return [plain(block) for block in blocks], ending


def partial(arguments: str) -> Any:
    return from_json(arguments, allow_partial=True) if arguments else {}


def plain(block: Json) -> Json:
    """A block without what differs between two requests, or comes in a delta of its own."""
    return {name: value for name, value in block.items() if name not in ("id", "call_id", "signature", "status")}


def whole_message(answer: Json) -> Any:
    ending = {name: answer[name] for name in ("stop_reason", "stop_sequence")}
    return [plain(block) for block in answer["content"]], ending


def response(events: list[Json]) -> Any:
    """The items that the events of a response build."""
    items: list[Json] = []
    for event in events:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            items.append(plain(event["item"]))
        elif kind == "content_part.added":
            items[-1]["content"] = [dict(event["part"])]
        elif kind in ("output_text.delta", "reasoning_text.delta"):
            items[-1]["content"][0]["text"] += event["delta"]
        elif kind == "function_call_arguments.delta":
            items[-1]["arguments"] += event["delta"]
        elif kind == "custom_tool_call_input.delta":
            items[-1]["input"] += event["delta"]
    last = events[-1]["response"]
    return items, last["status"], last["incomplete_details"]


def whole_response(answer: Json) -> Any:
    return [plain(item) for item in answer["output"]], answer["status"], answer["incomplete_details"]


def lines(events: list[Json]) -> Any:
    """The fields that the lines of Ollama's stream build."""
    built: Json = {"content": "", "thinking": "", "calls": []}
    for event in events:
        add(built, event)
    return built, events[-1]["done_reason"]


def add(built: Json, line: Json) -> None:
    said = line.get("message", line)
    built["content"] += said.get("content", said.get("response"))
    built["thinking"] += said.get("thinking", "")
    built["calls"] += [call["function"] for call in said.get("tool_calls", ())]


def whole_line(answer: Json) -> Any:
    return lines([answer])


def text(events: list[Json]) -> Any:
    (finish,) = [reason for event in events if (reason := event["choices"][0]["finish_reason"])]
    return "".join(event["choices"][0]["text"] for event in events), finish


def whole_text(answer: Json) -> Any:
    return answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]


class Dialect(NamedTuple):
    """How a dialect asks for the answer, limits and stops it; what its stream builds, and what its whole answer is."""

    path: str
    body: Json
    limit: str
    stop: str | None
    built: Callable[[list[Json]], Any]
    whole: Callable[[Json], Any]

    def asked(self, most: int, stop: str | None) -> Json:
        bounds: Json = {self.limit: most, **({self.stop: [stop]} if self.stop and stop else {})}
        return {**self.body, **({"options": bounds} if self.path.startswith("/api") else bounds)}


CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
TOOLS = {"messages": USER, "tools": NESTED}
DIALECTS = {
    "chat": Dialect(CHAT, TOOLS, "max_tokens", "stop", chat, whole_chat),
    "mistral": Dialect(CHAT, TOOLS | {"reasoning_format": "mistral"}, "max_tokens", "stop", chat, whole_chat),
    "no thought": Dialect(CHAT, TOOLS | {"include_reasoning": False}, "max_tokens", "stop", chat, whole_chat),
    "no tools": Dialect(CHAT, {"messages": USER}, "max_tokens", "stop", chat, whole_chat),
    "completions": Dialect("/v1/completions", {"prompt": f"u:{SAID};a:"}, "max_tokens", "stop", text, whole_text),
    "messages": Dialect(
        MESSAGES, {"messages": USER, "tools": BLOCKS}, "max_tokens", "stop_sequences", message, whole_message
    ),
    "responses": Dialect(
        RESPONSES, {"input": SAID, "tools": FLAT}, "max_output_tokens", None, response, whole_response
    ),
    "custom": Dialect(RESPONSES, {"input": SAID, "tools": CUSTOM}, "max_output_tokens", None, response, whole_response),
    "ollama chat": Dialect("/api/chat", TOOLS, "num_predict", "stop", lines, whole_line),
    "ollama generate": Dialect("/api/generate", {"prompt": SAID}, "num_predict", "stop", lines, whole_line),
}


class ThinkingChat(FakeChat):
    """A chat format whose model writes tags around its thoughts."""

    reasoning_style = "tags"


@pytest.fixture(scope="module")
def reciting() -> Iterator[Live]:
    with running(model="recite", chat=ThinkingChat(), max_model_len=2048) as live:
        yield live


@pytest.mark.parametrize("name", DIALECTS)
def test_a_stream_builds_the_whole_answer(reciting: Live, name: str) -> None:
    """All are asked at once, so that a step of the engine has tokens of many answers."""
    dialect = DIALECTS[name]
    ends = [(most, stop) for most, stop in ENDS if not stop or dialect.stop]
    asked = [{**dialect.asked(*end), "stream": stream} for end in ends for stream in (False, True)]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers = [*pool.map(lambda body: reciting.post(dialect.path, body), asked)]
    for (most, stop), whole, streamed in zip(ends, answers[::2], answers[1::2], strict=True):
        assert whole.status_code == 200, whole.text
        data = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line.startswith(("data: {", "{"))]
        built = dialect.built([*map(json.loads, data)])
        assert built == dialect.whole(whole.json()), (most, stop)
        if most > len(SAID) and not stop:
            assert "Oslo, N" in str(built), "the model did not say all"


def test_a_call_that_is_cut_is_a_block_with_what_is_whole_of_it(reciting: Live) -> None:
    """Anthropic's example looks at the type of the last block when `max_tokens` has ended the answer."""
    most = SAID.index("lo, N") + 1
    answer = reciting.post(MESSAGES, {"messages": USER, "tools": BLOCKS, "max_tokens": most}).json()
    last = answer["content"][-1]
    assert (answer["stop_reason"], last["type"], last["name"], last["input"]) == (
        "max_tokens",
        "tool_use",
        "weather",
        {},
    )
    most = SAID.index('"days"') + 1
    answer = reciting.post(MESSAGES, {"messages": USER, "tools": BLOCKS, "max_tokens": most}).json()
    assert answer["content"][-1]["input"] == {"input": "Oslo, N"}
