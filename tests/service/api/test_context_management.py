"""Anthropic's `context_management`: an edited conversation answers as one that its client has edited."""

from collections.abc import Iterator
from typing import Any

import pytest

from model.checkpoint.generation_config import GenerationDefaults
from service.api.anthropic.context import Draft, edited
from service.api.anthropic.messages import MessagesBody
from service.api.media import NO_MEDIA
from service.generation.served import ServedModel, longest_piece
from tests.fakes import END, IntegerTokenizer, make_info
from tests.service.live import FakeChat, Live, running

PATH = "/v1/messages"
TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("read", "search")]
NAMES = ["read", "search", "read", "read"]
USES = {"type": "clear_tool_uses_20250919"}
THINKING = {"type": "clear_thinking_20251015"}
EARLY = {"trigger": {"type": "tool_uses", "value": 1}}
LONG = "words " * 20


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with running(max_model_len=4096) as server:
        yield server


def call(index: int, name: str, given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"call_{index}", "name": name, "input": given}


def messages(cleared: str = "", bare: str = "", thoughts: str = "0123") -> list[dict[str, Any]]:
    """Four turns with a call, without the results of some, the arguments of some, and all `thoughts` but these."""
    told: list[dict[str, Any]] = []
    for index, name in enumerate(NAMES):
        thought = [{"type": "thinking", "thinking": "Hm.", "signature": ""}] if str(index) in thoughts else []
        used = call(index, name, {} if str(index) in bare else {"path": LONG})
        content = "[cleared]" if str(index) in cleared else f"{LONG}{index}"
        told += [
            {"role": "user", "content": f"ask {index}"},
            {"role": "assistant", "content": [*thought, used]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": used["id"], "content": content}]},
        ]
    return told


def ask(told: Any, *edits: Any, path: str = PATH, **fields: Any) -> dict[str, Any]:
    management = {"context_management": {"edits": [*edits]}} if edits else {}
    return {"messages": told, "tools": TOOLS, **({"max_tokens": 9} if path == PATH else {}), **management, **fields}


def counted(live: Live, *args: Any) -> dict[str, Any]:
    path = f"{PATH}/count_tokens"
    return live.post(path, ask(*args, path=path)).json()


def n_whole(live: Live) -> int:
    return counted(live, messages())["input_tokens"]


@pytest.mark.parametrize(
    ("fields", "cleared", "bare"),
    [
        (EARLY, "0", ""),
        (EARLY | {"keep": {"type": "tool_uses", "value": 1}}, "012", ""),
        (EARLY | {"keep": {"type": "tool_uses", "value": 0}}, "0123", ""),
        (EARLY | {"keep": {"type": "tool_uses", "value": 1}, "exclude_tools": ["search"]}, "02", ""),
        (EARLY | {"keep": {"type": "tool_uses", "value": 2}, "clear_tool_inputs": True}, "01", "01"),
        (EARLY | {"keep": {"type": "tool_uses", "value": 1}, "clear_tool_inputs": ["search"]}, "012", "1"),
        (EARLY | {"keep": {"type": "tool_uses", "value": 1}, "clear_tool_inputs": False}, "012", ""),
    ],
)
def test_old_results_are_replaced(live: Live, fields: Any, cleared: str, bare: str) -> None:
    reply = live.post(PATH, ask(messages(), USES | fields)).json()
    by_client = live.post(PATH, ask(messages(cleared, bare))).json()
    assert reply["content"] == by_client["content"]
    assert "context_management" not in by_client
    left = counted(live, messages(cleared, bare))["input_tokens"]
    report = {**USES, "cleared_tool_uses": len(cleared), "cleared_input_tokens": n_whole(live) - left}
    assert reply["context_management"] == {"applied_edits": [report]}
    assert counted(live, messages(), USES | fields) == {
        "input_tokens": left,
        "context_management": {"original_input_tokens": n_whole(live)},
    }


@pytest.mark.parametrize(
    ("fields", "applies"),
    [
        (lambda n, _: {"trigger": {"type": "input_tokens", "value": n - 1}}, True),
        (lambda n, _: {"trigger": {"type": "input_tokens", "value": n}}, False),
        (lambda *_: {"trigger": {"type": "tool_uses", "value": 3}}, True),
        (lambda *_: {"trigger": {"type": "tool_uses", "value": 4}}, False),
        (lambda *_: {}, False),
        (lambda *_: EARLY | {"keep": {"type": "tool_uses", "value": 4}}, False),
        (lambda *_: EARLY | {"exclude_tools": ["read"]}, False),
        (lambda _, saved: EARLY | {"clear_at_least": {"type": "input_tokens", "value": saved}}, True),
        (lambda _, saved: EARLY | {"clear_at_least": {"type": "input_tokens", "value": saved + 1}}, False),
    ],
)
def test_when_results_are_replaced(live: Live, fields: Any, applies: bool) -> None:
    n = n_whole(live)
    saved = n - counted(live, messages("0"))["input_tokens"]
    reply = live.post(PATH, ask(messages(), USES | fields(n, saved))).json()
    assert [edit["cleared_input_tokens"] for edit in reply["context_management"]["applied_edits"]] == [saved] * applies
    assert reply["content"] == live.post(PATH, ask(messages("0" if applies else ""))).json()["content"]


def test_a_result_shorter_than_its_replacement_stays(live: Live) -> None:
    told = messages()[:3]
    told[2]["content"][0]["content"] = "short"
    edit = USES | {"trigger": {"type": "tool_uses", "value": 0}, "keep": {"type": "tool_uses", "value": 0}}
    assert live.post(PATH, ask(told, edit)).json()["context_management"] == {"applied_edits": []}


def test_a_stream_ends_with_the_report(live: Live) -> None:
    report = live.post(PATH, ask(messages(), USES | EARLY)).json()["context_management"]
    events = live.events(PATH, ask(messages(), USES | EARLY))
    (delta,) = [event for event in events if event["type"] == "message_delta"]
    assert delta["context_management"] == report
    assert not any("context_management" in event for event in live.events(PATH, ask(messages())))


def test_a_conversation_beyond_the_context_fits_after_the_edit() -> None:
    """The prompt as sent is not tokenized: a token has at most 5 bytes."""
    told = messages()
    told[2]["content"][0]["content"] = "x" * 20_000
    edit = USES | {"trigger": {"type": "input_tokens", "value": 3000}, "keep": {"type": "tool_uses", "value": 3}}
    with running(max_model_len=3000) as live:
        assert "at least" in live.post(PATH, ask(told)).json()["error"]["message"]
        reply = live.post(PATH, ask(told, edit)).json()
        assert reply["content"] == live.post(PATH, ask(messages("0"))).json()["content"]
    (applied,) = reply["context_management"]["applied_edits"]
    assert 0 < applied["cleared_input_tokens"] < 20_000


class ThinkingChat(FakeChat):
    """Writes the thoughts."""

    call_style = "hermes"

    def render(self, messages: Any, **options: Any) -> str:
        told = [each | {"content": each.get("reasoning_content", "") + each["content"]} for each in messages]
        return super().render(told, **options)


TOKENIZER = IntegerTokenizer()
DEFAULTS, INFO = GenerationDefaults((END,), {}), make_info(max_model_len=4096)
SERVED = ServedModel(("m",), TOKENIZER, ThinkingChat(), DEFAULTS, longest_piece(TOKENIZER), INFO)


def result_of(told: Any, *edits: Any) -> Any:
    body = MessagesBody.model_validate(ask(told, *edits))
    return edited(body.context_management, Draft(body.chat(), SERVED, NO_MEDIA))


@pytest.mark.parametrize(
    ("edits", "cleared", "thoughts", "counts"),
    [
        ([THINKING], "", "3", [3]),
        ([THINKING | {"keep": {"type": "thinking_turns", "value": 2}}], "", "23", [2]),
        ([THINKING | {"keep": {"type": "thinking_turns", "value": 4}}], "", "0123", []),
        ([THINKING | {"keep": "all"}, USES | EARLY], "0", "0123", [1]),
        ([THINKING, USES | EARLY], "0", "3", [3, 1]),
        ([USES | EARLY, THINKING], "0", "3", [1, 3]),
    ],
)
def test_thoughts_and_results_in_one_request(edits: Any, cleared: str, thoughts: str, counts: list[int]) -> None:
    draft, applied = result_of(messages(), *edits)
    by_client, _ = result_of(messages(cleared, thoughts=thoughts))
    assert draft.chat.messages == by_client.chat.messages
    assert [edit.get("cleared_tool_uses") or edit.get("cleared_thinking_turns") for edit in applied] == counts
    original, _ = result_of(messages())
    assert sum(edit["cleared_input_tokens"] for edit in applied) == original.n_tokens - draft.n_tokens


def test_a_turn_without_a_thought_does_not_count() -> None:
    def thinking(text: str) -> dict[str, Any]:
        return {"type": "thinking", "thinking": text, "signature": "s"}

    used = call(0, "read", {})
    result = {"type": "tool_result", "tool_use_id": used["id"], "content": "r"}
    told = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": [thinking("1"), {"type": "text", "text": "c"}]},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": [thinking("2"), used]},
        {"role": "user", "content": [result]},
        {"role": "assistant", "content": [thinking("3"), used]},
        {"role": "user", "content": [result, {"type": "text", "text": "and?"}]},
        {"role": "assistant", "content": "d"},
        {"role": "user", "content": "e"},
    ]

    def left(keep: Any) -> list[str]:
        draft, _ = result_of(told, THINKING | {"keep": keep})
        return [message["reasoning_content"] for message in draft.chat.messages if "reasoning_content" in message]

    assert left(None) == left({"type": "thinking_turns", "value": 1}) == ["2", "3"]
    for keep in ({"type": "thinking_turns", "value": 2}, "all", {"type": "all"}):
        assert left(keep) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        ({"type": "compact_20260112"}, ["edits[0].type", '"compact_20260112"', "clear_tool_uses_20250919"]),
        (USES | {"trigger": {"type": "messages", "value": 1}}, ["trigger.type", '"input_tokens" or "tool_uses"']),
        (USES | {"trigger": {"type": "tool_uses", "value": -1}}, ["trigger.value", "0", "-1"]),
        (USES | {"trigger": {"type": "tool_uses"}}, ["trigger.value is required"]),
        (USES | {"keep": {"type": "input_tokens", "value": 1}}, ["keep.type", '"tool_uses"', '"input_tokens"']),
        (USES | {"clear_at_least": {"type": "input_tokens", "value": 2**31}}, ["clear_at_least.value", "2147483647"]),
        (USES | {"clear_tool_inputs": "all"}, ["clear_tool_inputs", "boolean", '"all"']),
        (USES | {"exclude_tools": [1]}, ["exclude_tools[0]", "string", "1"]),
        (USES | {"exclude_tools": ["read"] * 129}, ["exclude_tools", "128", "129"]),
        (USES | {"placeholder": "x"}, ["edits[0]", "unknown field 'placeholder'"]),
        (THINKING | {"keep": {"type": "tool_uses", "value": 1}}, ["keep.type", '"thinking_turns"', '"tool_uses"']),
    ],
)
def test_refusals(live: Live, edit: Any, words: list[str]) -> None:
    response = live.post(PATH, ask(messages(), edit))
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert message.startswith("context_management.edits[0]")
    assert all(word in message for word in words), message


def test_a_request_has_at_most_two_edits(live: Live) -> None:
    message = live.post(PATH, ask(messages(), USES, USES, USES)).json()["error"]["message"]
    assert message == "context_management.edits must have at most 2 items, got 3"
