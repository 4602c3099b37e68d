"""Thoughts in every dialect: apart from the answer, counted, sent back, turned on and off, and refused without them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from openai.types.chat import ChatCompletion
from openai.types.responses import Response as ResponseModel

from model.chat.reasoning import STYLES, check_effort
from model.checkpoint.generation_config import GenerationDefaults
from model.errors import OptionError, ParameterError
from model.grammar.thinking import Thinking
from service.api.anthropic.messages import MessagesBody
from service.api.openai.chat import ChatBody
from service.api.prompt import chat_request
from service.api.responses.routes import ResponsesBody
from service.errors.errors import InvalidRequest
from service.generation.served import ServedModel
from service.generation.startup import marks_of
from service.generation.text import TextStream
from service.settings import Settings
from tests.fakes import END, END_THINK, THINK, IntegerTokenizer, make_info
from tests.service.live import FakeChat, Live, refused, running

THOUGHT, ANSWER = "Hm, a < b. So: é", "Hello!\n\nYou."
SAID = f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}"
USER = [{"role": "user", "content": SAID}]
N_THOUGHT = len(f"<think>\n{THOUGHT}\n</think>".encode())
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"


class ThinkingChat(FakeChat):
    """A chat format whose model writes tags. Thoughts of earlier answers come as `t:thought;`."""

    reasoning_style = "tags"

    def encode(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        variables = dict(options.pop("variables", {}))
        self.seen = {name: variables.pop(name) for name in self.switches if name in variables}
        told: list[Mapping[str, Any]] = []
        for message in messages:
            if thought := message.get("reasoning_content"):
                told.append({"role": "thought", "content": thought})
            told.append(message)
        return super().encode(told, variables=variables, **options)


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """A server whose model repeats the last user message, thoughts and all."""
    with running(model="recite", chat=ThinkingChat(), max_model_len=2048) as server:
        yield server


def post(live: Live, path: str, **body: Any) -> dict[str, Any]:
    response = live.post(path, body)
    assert response.status_code == 200, response.text
    return response.json()


# Answers


def test_chat_has_the_thought_beside_the_content(live: Live) -> None:
    before = live.metric("noria_reasoning_tokens_total")
    reply = post(live, CHAT, messages=USER)
    assert live.metric("noria_reasoning_tokens_total") == before + N_THOUGHT
    message = reply["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == (ANSWER, THOUGHT)
    assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": N_THOUGHT}
    assert reply["usage"]["completion_tokens"] == len(SAID.encode()) + 1
    ChatCompletion.model_validate(reply)
    assert (
        "reasoning_content"
        not in post(live, CHAT, messages=[{"role": "user", "content": "x"}])["choices"][0]["message"]
    )


def test_chunks_have_it_apart(live: Live) -> None:
    for n in (1, 2):
        chunks = live.events(CHAT, {"messages": USER, "n": n, "stream_options": {"include_usage": True}})
        for index in range(n):
            deltas = [c["delta"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
            assert "".join(delta.get("reasoning_content", "") for delta in deltas) == THOUGHT
            assert "".join(delta.get("content", "") for delta in deltas) == ANSWER
            kinds = [key for delta in deltas for key in delta if delta[key] and key != "role"]
            assert kinds == sorted(kinds, reverse=True), "the thought comes first"
        assert chunks[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == n * N_THOUGHT


def test_a_thought_can_be_left_out_or_left_in(live: Live) -> None:
    out = post(live, CHAT, messages=USER, include_reasoning=False)
    assert out["choices"][0]["message"] == {"role": "assistant", "content": ANSWER, "refusal": None}
    assert out["usage"]["completion_tokens_details"]["reasoning_tokens"] == N_THOUGHT
    left = post(live, CHAT, messages=USER, reasoning_format="none")
    assert left["choices"][0]["message"] == {"role": "assistant", "content": SAID, "refusal": None}
    assert left["usage"]["completion_tokens_details"]["reasoning_tokens"] == N_THOUGHT


CHUNKS = [
    {"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]},
    {"type": "text", "text": ANSWER},
]
"""As `ThinkChunk` and `TextChunk` of Mistral's SDK."""


def test_mistrals_clients_have_it_in_the_content(live: Live) -> None:
    asked = {"messages": USER, "reasoning_format": "mistral"}
    message = post(live, CHAT, **asked)["choices"][0]["message"]
    assert message == {"role": "assistant", "content": CHUNKS, "refusal": None}
    chunks = live.events(CHAT, asked)
    parts = [chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks]
    thoughts = [part[0]["thinking"][0]["text"] for part in parts if isinstance(part, list)]
    assert "".join(thoughts) == THOUGHT
    assert "".join(part for part in parts if isinstance(part, str)) == ANSWER
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert chunks[-1]["usage"]["completion_tokens_details"]["reasoning_tokens"] == N_THOUGHT
    silent = live.events(CHAT, asked | {"stream_options": {"include_usage": False}})
    assert not any("usage" in chunk for chunk in silent)
    cut = post(live, CHAT, **asked, max_tokens=15)["choices"][0]["message"]["content"]
    assert cut == [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm, a <"}]}]
    assert post(live, CHAT, **asked, include_reasoning=False)["choices"][0]["message"]["content"] == ANSWER
    plain = asked | {"messages": [{"role": "user", "content": "x"}]}
    assert post(live, CHAT, **plain)["choices"][0]["message"]["content"] == "x"
    back = [*USER, {"role": "assistant", "content": CHUNKS, "prefix": False}, *USER]
    assert post(live, CHAT, messages=back)["usage"]["prompt_tokens"] > len(SAID) + len(THOUGHT) + len(ANSWER)


def test_the_format_of_a_silent_request_is_its_keys_and_then_the_servers(tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    entries = [{"name": "m", "key": "m", "reasoning_format": "mistral"}, {"name": "a", "key": "a"}]
    keys.write_text(json.dumps({"keys": entries}))
    options: dict[str, Any] = {"model": "recite", "chat": ThinkingChat(), "max_model_len": 2048}
    with running(**options, api_key_file=keys, reasoning_format="none") as live:
        for key, fields, content in (
            ("m", {}, CHUNKS),
            ("a", {}, SAID),
            ("m", {"reasoning_format": "auto"}, ANSWER),
            ("a", {"reasoning_format": "mistral"}, CHUNKS),
        ):
            headers = {"authorization": f"Bearer {key}"}
            reply = live.post(CHAT, {"messages": USER, **fields}, headers=headers).json()
            assert reply["choices"][0]["message"]["content"] == content


@pytest.mark.parametrize(
    ("fields", "on", "effort", "budget"),
    [
        ({"prompt_mode": "reasoning"}, True, "high", None),
        ({"prompt_mode": "reasoning", "reasoning_effort": "low"}, True, "low", None),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, True, "high", 9),
        ({"thinking": {"type": "disabled"}}, False, None, None),
        ({"thinking": {"type": "adaptive"}}, None, None, None),
        ({"thinking_token_budget": 9, "thinking": {"type": "enabled", "budget_tokens": 9}}, True, "high", 9),
    ],
)
def test_other_names_of_the_effort(
    fields: dict[str, Any], on: bool | None, effort: str | None, budget: int | None
) -> None:
    options = ChatBody.model_validate({"messages": USER, **fields}).reasoning_options
    assert (options.on, options.effort, options.budget) == (on, effort, budget)


def test_logprobs_and_ids_cover_the_thought_too(live: Live) -> None:
    """As vLLM has them: one entry for each generated token but the last, which ends the answer."""
    reply = post(live, CHAT, messages=USER, logprobs=True, return_token_ids=True)["choices"][0]
    assert bytes(reply["token_ids"]).removesuffix(b"\0").decode() == SAID
    scored = reply["logprobs"]["content"]
    assert bytes(byte for item in scored for byte in item["bytes"] or ()).decode() == SAID
    chunks = live.events(CHAT, {"messages": USER, "logprobs": True})
    streamed = [item for chunk in chunks for c in chunk["choices"] for item in (c["logprobs"] or {}).get("content", ())]
    assert [item["token"] for item in streamed] == [item["token"] for item in scored]


def test_stop_strings_are_looked_for_in_the_answer(live: Live) -> None:
    reply = post(live, CHAT, messages=USER, stop=["a < b", "\n\nYou"])["choices"][0]
    assert (reply["message"]["content"], reply["finish_reason"]) == ("Hello!", "stop")
    assert reply["message"]["reasoning_content"] == THOUGHT


def test_a_limit_in_the_thought_leaves_no_content(live: Live) -> None:
    reply = post(live, CHAT, messages=USER, max_tokens=15)["choices"][0]
    assert reply["finish_reason"] == "length"
    assert (reply["message"]["content"], reply["message"]["reasoning_content"]) == ("", "Hm, a <")
    message = post(live, MESSAGES, messages=USER, max_tokens=15)
    assert [block["type"] for block in message["content"]] == ["thinking"]
    response = post(live, RESPONSES, input=SAID, max_output_tokens=15)
    assert [(item["type"], item["status"]) for item in response["output"]] == [("reasoning", "incomplete")]


def test_messages_have_a_block_of_thought(live: Live) -> None:
    reply = post(live, MESSAGES, messages=USER, max_tokens=300)
    assert reply["content"] == [
        {"type": "thinking", "thinking": THOUGHT, "signature": "noria"},
        {"type": "text", "text": ANSWER},
    ]
    assert reply["usage"]["output_tokens"] == len(SAID.encode()) + 1
    events = live.events(MESSAGES, {"messages": USER, "max_tokens": 300})
    kinds = [event["delta"]["type"] for event in events if event["type"] == "content_block_delta"]
    assert [kind for n, kind in enumerate(kinds) if kind not in kinds[:n]] == [
        "thinking_delta",
        "signature_delta",
        "text_delta",
    ]
    assert "".join(event.get("delta", {}).get("thinking", "") for event in events) == THOUGHT
    starts = [event for event in events if event["type"] == "content_block_start"]
    assert starts[0]["content_block"] == {"type": "thinking", "thinking": "", "signature": ""}
    assert [event["index"] for event in starts] == [0, 1]


def test_messages_can_omit_the_text_of_a_thought(live: Live) -> None:
    reply = post(live, MESSAGES, messages=USER, max_tokens=300, thinking={"type": "adaptive", "display": "omitted"})
    assert [block.get("thinking") for block in reply["content"]] == ["", None]
    assert reply["content"][1]["text"] == ANSWER


def test_responses_have_an_item_of_thought(live: Live) -> None:
    events = live.events(RESPONSES, {"input": SAID, "include": ["reasoning.encrypted_content"]})
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[2:4] == ["output_item.added", "content_part.added"]
    assert "".join(event["delta"] for event in events if event["type"] == "response.reasoning_text.delta") == THOUGHT
    done, item, part = kinds.index("reasoning_text.done"), "output_item", "content_part"
    assert kinds[done + 1 : done + 5] == [f"{part}.done", f"{item}.done", f"{item}.added", f"{part}.added"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    final = events[-1]["response"]
    ResponseModel.model_validate(final)
    thought, message = final["output"]
    assert (thought["type"], message["type"]) == ("reasoning", "message")
    assert (thought["content"][0]["text"], thought["summary"], thought["encrypted_content"]) == (THOUGHT, [], None)
    assert message["content"][0]["text"] == ANSWER
    assert final["usage"]["output_tokens_details"]["reasoning_tokens"] == N_THOUGHT


def test_responses_have_the_log_probabilities_of_the_answer_alone(live: Live) -> None:
    body = {"input": SAID, "include": ["message.output_text.logprobs"]}
    streamed = live.events(RESPONSES, body)[-1]["response"]
    for reply in (post(live, RESPONSES, **body), streamed):
        scores = reply["output"][1]["content"][0]["logprobs"]
        assert "".join(score["token"] for score in scores).strip() == ANSWER


def test_calls_are_read_after_the_thought(live: Live) -> None:
    said = '<think>\nI could <tool_call>\n</think>\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    reply = post(live, CHAT, messages=[{"role": "user", "content": said}], tools=tools)["choices"][0]
    assert reply["message"]["reasoning_content"] == "I could <tool_call>"
    assert reply["message"]["tool_calls"][0]["function"] == {"name": "f", "arguments": '{"a": 1}'}
    assert reply["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("ends", "text", "phase"),
    [
        ("<think>\n", "hi", "inside"),
        ("<think>\n\n</think>\n\n", "hi", "after"),
        ("", "How do I use <think>", "before"),  # the mark is text of the user
        ("", "And </think>", "before"),
        ("", "a<think>", "before"),
    ],
)
def test_a_prompt_may_open_or_close_the_thought(ends: str, text: str, phase: str) -> None:
    class Written(ThinkingChat):
        def encode(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
            return [*f"{messages[-1]['content']}{ends}".encode()]

    body = ChatBody.model_validate({"messages": [{"role": "user", "content": text}]})
    reasoning = chat_request(body.chat(), served(Written())).reasoning
    assert reasoning is not None
    assert reasoning.phase == phase


@pytest.mark.parametrize(
    ("content", "said", "expected"),
    [
        ("To write a thought use <think>, then", "<think>Yes", ("<think>Yes", None)),
        ("Use </think> or <think>", " Yes", (" Yes", None)),
        ("<think>a</think> b <think>", "Yes", ("Yes", None)),
        (" <think>\nI see", " it.</think> Yes", ("Yes", " it.")),
        ("<think>a</think>", "  b", ("  b", None)),
    ],
)
def test_only_a_mark_at_the_beginning_opens_a_thought_that_is_continued(
    content: str, said: str, expected: tuple[str, str | None]
) -> None:
    messages = [{"role": "user", "content": "u"}, {"role": "assistant", "content": content}]

    order = chat_request(
        ChatBody.model_validate({"messages": messages, "continue_final_message": True}).chat(), served()
    )
    assert order.reasoning is not None
    stream = TextStream(IntegerTokenizer(), reasoning=order.reasoning)
    for byte in said.encode():
        stream.push(byte)
    released = stream.take(final=True)
    assert (released.text, released.thought or None) == expected


@pytest.mark.parametrize(
    ("ids", "continues", "phase"),
    [
        ([*b"The token is [THINK]"], True, "after"),
        ([*b"[THINK]"], False, "before"),
        ([THINK, *b"Hm, [/THINK] so" * 9], True, "inside"),
        ([THINK, *b"Hm", END_THINK, *b"Fine"], True, "after"),
        ([THINK, *b"Hm", END_THINK, *b"Fine"], False, "before"),
        ([*b"u:", THINK, *b"\n"], False, "inside"),
        ([*b"u:", THINK, END_THINK], False, "after"),
    ],
)
def test_marks_that_are_tokens_say_where_a_prompt_ends(ids: list[int], continues: bool, phase: str) -> None:
    class Written(FakeChat):
        reasoning_style = "tokens"

        def encode(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
            return ids

    messages = [*USER, {"role": "assistant", "content": "[THINK] is [THINK]"}] if continues else USER
    model = replace(served(Written(), style="tokens"), tokenizer=MarkTokenizer())
    body = {"messages": messages, "continue_final_message": continues}
    order = chat_request(ChatBody.model_validate(body).chat(), model)
    assert order.reasoning is not None
    assert order.reasoning.phase == phase
    budgeted = chat_request(ChatBody.model_validate(body | {"thinking_token_budget": 3}).chat(), model)
    thinking = Thinking.from_json(budgeted.params.grammar or "")
    assert thinking is not None
    assert (thinking.phase, thinking.budget) == ("answer" if phase == "after" else phase, 3)


# Earlier thoughts


SPOKEN = {"role": "assistant", "content": "c"}


@pytest.mark.parametrize(
    "spoken",
    [
        {"reasoning_content": "t"},
        {"reasoning": "t"},
        {"reasoning_content": "t", "reasoning": "t"},
        {"content": [{"type": "thinking", "thinking": "t"}, {"type": "text", "text": "c"}]},
        {
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "t"}], "closed": True},
                {"type": "text", "text": "c"},
            ]
        },
    ],
)
def test_chat_takes_earlier_thoughts(spoken: dict[str, Any]) -> None:
    body = ChatBody.model_validate({"messages": [{"role": "user", "content": "a"}, SPOKEN | spoken]})
    assert body.chat().messages[1] == SPOKEN | {"reasoning_content": "t"}


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ({"role": "user", "content": "a", "reasoning_content": "t"}, ["user", "thoughts"]),
        ({"role": "user", "content": [{"type": "thinking", "thinking": "t"}]}, ["user", "thoughts"]),
        ({"role": "system", "content": "a", "reasoning_content": "t"}, ["system", "reasoning_content", "thoughts"]),
        (
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "closed": False}]},
            ["messages[0] has a thinking part with closed false", "continue_final_message"],
        ),
        (
            {"role": "system", "content": [{"type": "thinking", "thinking": "t", "closed": False}]},
            ["messages[0] has a thinking part with closed false", "close it"],
        ),
        ({**SPOKEN, "reasoning_content": "t", "reasoning": "u"}, ["reasoning_content and reasoning", "different"]),
        ({**SPOKEN, "reasoning_content": 5}, ["reasoning_content", "string"]),
    ],
)
def test_chat_refuses_strange_thoughts(live: Live, message: dict[str, Any], words: list[str]) -> None:
    error = refused(live, CHAT, {"messages": [message]})
    assert all(word in error["message"] for word in words), error


def test_messages_take_earlier_thoughts() -> None:
    call = {"type": "tool_use", "id": "x", "name": "f", "input": {}}
    blocks = [
        {"type": "thinking", "thinking": "t", "signature": "s"},
        {"type": "redacted_thinking", "data": "zzz"},
        {"type": "text", "text": "c"},
        call,
    ]
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": blocks},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "r"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "u", "signature": "s"}, call]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "x", "content": "r"}]},
    ]

    told = MessagesBody.model_validate({"messages": messages, "max_tokens": 9}).chat().messages
    assert [message.get("reasoning_content") for message in told if message["role"] == "assistant"] == ["t", "u"]


PARTS = [
    {"type": "text", "text": "a"},
    {"type": "thinking", "thinking": [{"type": "text", "text": "t"}], "closed": True},
    {"type": "text", "text": "b"},
]


def test_a_system_message_may_have_thoughts() -> None:
    """As Magistral's published system prompt."""
    for role in ("system", "developer"):
        body = ChatBody.model_validate({"messages": [{"role": role, "content": PARTS}, *USER]})
        told = {"type": "thinking", "thinking": "t", "closed": True}
        assert body.chat().messages[0] == {
            "role": role,
            "content": "ab",
            "parts": [PARTS[0], told, PARTS[2]],
        }


def test_an_open_thought_is_continued() -> None:
    part = {"type": "thinking", "thinking": "t", "closed": False}
    body = ChatBody.model_validate(
        {"messages": [*USER, {"role": "assistant", "content": [part]}], "continue_final_message": True}
    )
    body.check()
    assert body.chat().messages[1] == {"role": "assistant", "content": "", "parts": [part]}


def test_responses_take_earlier_thoughts() -> None:
    items = [
        {"role": "user", "content": "a"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "t"}]},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "b"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "u"}], "encrypted_content": None},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "r"},
    ]
    told = ResponsesBody.model_validate({"input": items}).chat().messages
    assert [message.get("reasoning_content") for message in told] == [None, "t", None, "u", None]


# On, off, how much


def served(chat: FakeChat | None = None, budget: int | None = None, style: str | None = "tags") -> ServedModel:
    marks = STYLES[style] if style else None
    defaults = GenerationDefaults((END,), {})
    return ServedModel(
        ("m",), IntegerTokenizer(), chat or ThinkingChat(), defaults, 1, make_info(max_model_len=2048), marks, budget
    )


class Switched(ThinkingChat):
    switches = frozenset({"enable_thinking"})


class Graded(ThinkingChat):
    switches = frozenset({"reasoning_effort"})
    efforts = ("none", "high")


def chat_order(model: ServedModel, **fields: Any) -> Thinking | None:
    """The grammar of a thought that a chat request makes."""
    order = chat_request(ChatBody.model_validate({"messages": USER, **fields}).chat(), model)
    return Thinking.from_json(order.params.grammar or "")


def messages_order(model: ServedModel, **fields: Any) -> Thinking | None:
    body = MessagesBody.model_validate({"messages": USER, "max_tokens": 500, **fields})
    return Thinking.from_json(chat_request(body.chat(), model).params.grammar or "")


def budget(thinking: Thinking | None) -> int | None:
    return None if thinking is None else thinking.budget


def test_efforts_are_budgets_where_the_model_has_none() -> None:
    found = {
        effort: budget(chat_order(served(), reasoning_effort=effort))
        for effort in ("none", "minimal", "low", "medium", "high", "max")
    }
    assert found == {"none": 0, "minimal": 1024, "low": 4096, "medium": 16384, "high": None, "max": None}
    assert chat_order(served()) is None, "no grammar is needed without a limit"


def test_budgets_of_the_request_and_the_server() -> None:
    assert budget(chat_order(served(), thinking_token_budget=7)) == 7
    assert budget(chat_order(served(budget=9))) == 9
    assert budget(chat_order(served(budget=9), thinking_token_budget=7)) == 7
    assert budget(chat_order(served(budget=9), reasoning_effort="high")) == 9
    assert budget(messages_order(served(), thinking={"type": "enabled", "budget_tokens": 7})) == 7
    assert budget(messages_order(served(), thinking={"type": "disabled"})) == 0
    assert budget(messages_order(served(), thinking={"type": "adaptive"}, output_config={"effort": "low"})) == 4096


def test_a_budget_leaves_the_end_of_the_answer_to_other_limits() -> None:
    assert budget(chat_order(served(), thinking_token_budget=7, ignore_eos=True, min_tokens=3)) == 7
    form = {"type": "json_object"}
    with pytest.raises(ParameterError, match=r"min_tokens \(3\) contradicts a grammar"):
        chat_order(served(), thinking_token_budget=7, min_tokens=3, response_format=form)


def test_a_budget_needs_an_end_token() -> None:
    endless = replace(served(), defaults=GenerationDefaults((), {}))
    with pytest.raises(InvalidRequest, match="with a budget needs a model with an end token"):
        chat_order(endless, thinking_token_budget=7)
    assert chat_order(endless) is None


def test_switches_of_the_chat_format() -> None:
    for fields, expected in (
        ({}, {}),
        ({"reasoning_effort": "none"}, {"enable_thinking": False}),
        ({"reasoning_effort": "low"}, {"enable_thinking": True}),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
    ):
        chat = Switched()
        chat_order(served(chat), **fields)
        assert chat.seen == expected
    assert chat_order(served(Switched()), reasoning_effort="none") is None, "the template ends the thought"


def test_efforts_that_the_chat_format_knows() -> None:
    for fields, expected in (
        ({"thinking": {"type": "enabled", "budget_tokens": 7}}, {"reasoning_effort": "high"}),
        ({"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}),
        ({"thinking": {"type": "adaptive"}, "output_config": {"effort": "medium"}}, {"reasoning_effort": "high"}),
        ({"thinking": {"type": "adaptive"}}, {}),
    ):
        chat = Graded()
        messages_order(served(chat), **fields)
        assert chat.seen == expected


@pytest.mark.parametrize(
    ("effort", "used"), [("minimal", "high"), ("medium", "high"), ("max", "high"), ("none", "none")]
)
def test_the_model_gets_the_nearest_effort_that_it_knows(effort: str, used: str) -> None:
    """Codex CLI sends "medium" unless its user says otherwise."""
    responses = ResponsesBody.model_validate({"input": "a", "reasoning": {"effort": effort}})
    for body in (responses, ChatBody.model_validate({"messages": USER, "reasoning_effort": effort})):
        chat = Graded()
        chat_request(body.chat(), served(chat))
        assert chat.seen == {"reasoning_effort": used}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning_effort": "none"}, "reasoning_effort"),
        ({"reasoning_effort": "none", "thinking_token_budget": 5}, "thinking_token_budget"),
        ({"chat_template_kwargs": {"reasoning_effort": "none"}}, "chat_template_kwargs"),
    ],
)
def test_an_effort_that_the_format_refuses_has_the_clients_field(fields: dict[str, Any], param: str) -> None:
    class Refusing(Graded):
        efforts = ("low", "high")

        def encode(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
            check_effort(options["variables"].get("reasoning_effort"), self.efforts)
            return super().encode(messages, **options)

    with pytest.raises(InvalidRequest, match='must be one of low, high, got "none"') as caught:
        chat_order(served(Refusing()), **fields)
    assert caught.value.param == param


def test_a_thought_in_the_text_has_its_budget_too() -> None:
    left = {"reasoning_format": "none"}
    assert budget(chat_order(served(), thinking_token_budget=7, **left)) == 7
    assert budget(chat_order(served(), reasoning_effort="none", **left)) == 0
    assert budget(chat_order(served(budget=9), **left)) == 9
    form = {"type": "json_object"}
    assert chat_order(served(budget=9), response_format=form, **left) is None, "all of the text is JSON"


def test_structured_output_constrains_what_follows_the_thought() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    thinking = chat_order(served(), response_format=form, thinking_token_budget=5)
    assert thinking is not None
    assert (thinking.phase, thinking.budget) == ("before", 5)
    assert json.loads(thinking.answer or "")["grammars"][0]["json_schema"]["type"] == "object"
    plain = chat_order(served(style=None), response_format=form)
    assert plain is None


# Models without reasoning


@pytest.fixture(scope="module")
def plain() -> Iterator[Live]:
    with running() as server:
        yield server


@pytest.mark.parametrize(
    ("path", "body", "ignored"),
    [
        (CHAT, {"reasoning_effort": "none"}, None),
        (CHAT, {"reasoning_effort": None, "reasoning_format": "auto", "include_reasoning": True}, None),
        (CHAT, {"thinking_token_budget": 0}, None),
        (MESSAGES, {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, None),
        (MESSAGES, {"thinking": {"type": "adaptive"}}, None),
        (RESPONSES, {"reasoning": {"effort": "none", "summary": None}}, None),
        (RESPONSES, {"reasoning": {"summary": "auto"}, "include": ["reasoning.encrypted_content"]}, None),
        (RESPONSES, {"reasoning": {}}, None),
        (CHAT, {"reasoning_effort": "low"}, "reasoning_effort"),
        (CHAT, {"thinking_token_budget": 5}, "thinking_token_budget"),
        (MESSAGES, {"thinking": {"type": "enabled", "budget_tokens": 2}}, "thinking"),
        (MESSAGES, {"thinking": {"type": "adaptive"}, "output_config": {"effort": "max"}}, "output_config.effort"),
        (RESPONSES, {"reasoning": {"effort": "high"}}, "reasoning.effort"),
    ],
)
def test_what_asks_for_reasoning_is_named(plain: Live, path: str, body: dict[str, Any], ignored: str | None) -> None:
    asked = {"input": "hi", "max_output_tokens": 3} if path == RESPONSES else {"messages": USER, "max_tokens": 3}
    for stream in (False, True):
        response = plain.post(path, asked | body | {"stream": stream})
        assert (response.status_code, response.headers.get("x-noria-ignored")) == (200, ignored)


def test_options_that_cannot_work_are_refused_at_the_start() -> None:
    tokenizer = IntegerTokenizer()
    assert marks_of(Settings(), ThinkingChat(), tokenizer) == STYLES["tags"]
    assert marks_of(Settings(reasoning_style="none"), ThinkingChat(), tokenizer) is None
    assert marks_of(Settings(reasoning_style="tags"), FakeChat(), tokenizer) == STYLES["tags"]
    assert marks_of(Settings(), None, tokenizer) is None
    with pytest.raises(OptionError, match=r"--reasoning-style tokens needs a tokenizer with \[THINK\]"):
        marks_of(Settings(reasoning_style="tokens"), FakeChat(), tokenizer)
    with pytest.raises(OptionError, match=r"--reasoning-budget 5 needs a model with reasoning"):
        marks_of(Settings(reasoning_budget=5), FakeChat(), tokenizer)


class MarkTokenizer(IntegerTokenizer):
    """Mistral's marks are tokens 250 and 251."""

    control: Mapping[str, int] = MappingProxyType({"<end>": END, "[THINK]": THINK, "[/THINK]": END_THINK})  # type: ignore[assignment]

    def piece(self, token: int) -> bytes:
        return b"" if token in (THINK, END_THINK) else super().piece(token)


def test_marks_that_are_tokens() -> None:
    class Tokens(FakeChat):
        reasoning_style = "tokens"

    user = [{"role": "user", "content": "[THINK] is a word"}]
    with running(model="marks", chat=Tokens(), tokenizer=MarkTokenizer()) as live:
        message = post(live, CHAT, messages=user, max_tokens=40)["choices"][0]["message"]
        left = post(live, CHAT, messages=user, max_tokens=40, reasoning_format="none")["choices"][0]["message"]
    assert message["reasoning_content"] == " a[/THINK]b "
    assert message["content"] == "[THINK] c"
    assert left["content"] == "[THINK] a[/THINK]b [/THINK][THINK] c"
