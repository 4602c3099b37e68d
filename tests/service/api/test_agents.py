"""Requests in the shape of Claude Code's and Codex CLI's, as public captures show them.

They get answers from a model without reasoning, and the second turn hits the prefix cache.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from service.api.anthropic.messages import MessagesBody
from service.api.responses.routes import ResponsesBody
from service.api.responses.shape import ResponseShape
from service.generation.choice import Delta
from service.generation.usage import Usage
from service.structured.call_reader import CallReader
from service.structured.call_style import STYLES
from tests.service.live import Live, refused, running

CACHED = {"type": "ephemeral"}
LONG_TEXT = "Use the tools, and answer in few words. " * 10


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with running(max_model_len=6000) as server:
        yield server


# Claude Code: POST /v1/messages?beta=true

CLAUDE = "/v1/messages?beta=true"
CLAUDE_HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,context-management-2025-06-27,"
    "prompt-caching-scope-2026-01-05,effort-2025-11-24",
    "x-app": "cli",
    "user-agent": "claude-cli/2.1.37 (external, cli)",
    "x-api-key": "none",
}
BASH = {
    "name": "Bash",
    "description": "Executes a command.",
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"command": {"type": "string"}, "timeout": {"type": "number"}},
        "required": ["command"],
        "additionalProperties": False,
    },
    "eager_input_streaming": True,
}
READ = {"name": "Read", "description": "Reads a file.", "input_schema": {"type": "object"}, "cache_control": CACHED}


def claude(messages: list[Any], hash_: str, **fields: Any) -> dict[str, Any]:
    """A request of Claude Code. `hash_` is what changes in its billing line."""
    billing = f"x-anthropic-billing-header: cc_version=2.1.37.0d9; cc_entrypoint=cli; cch={hash_};"
    return {
        "model": "fake",
        "messages": messages,
        "system": [
            {"type": "text", "text": billing},
            {"type": "text", "text": "You are Claude Code.", "cache_control": CACHED | {"scope": "global"}},
            {"type": "text", "text": LONG_TEXT, "cache_control": CACHED | {"ttl": "1h"}},
        ],
        "tools": [BASH, READ],
        "metadata": {"user_id": json.dumps({"device_id": "d" * 64, "account_uuid": "", "session_id": "s" * 36})},
        "max_tokens": 20,
        "thinking": {"type": "adaptive"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "medium"},
        **fields,
    }


FIRST: list[Any] = [
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "<system-reminder>\nToday is Monday.\n</system-reminder>"},
            {"type": "text", "text": "List the files.", "cache_control": CACHED},
        ],
    }
]
SECOND: list[Any] = [
    {"role": "user", "content": [{"type": "text", "text": part["text"]} for part in FIRST[0]["content"]]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I list them.", "signature": "noria"},
            {"type": "text", "text": "I look."},
            {
                "type": "tool_use",
                "id": "toolu_01",
                "name": "Bash",
                "input": {"command": "ls"},
                "caller": {"type": "direct"},
            },
        ],
    },
    {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": "toolu_01",
                "content": [{"type": "text", "text": "a.txt"}],
                "is_error": False,
                "cache_control": CACHED,
            }
        ],
    },
]


def test_claude_code_gets_answers_and_its_second_turn_hits_the_cache(live: Live) -> None:
    usages = []
    for messages, hash_ in ((FIRST, "fa690"), (SECOND, "71fea")):
        events = live.events(CLAUDE, claude(messages, hash_), headers=CLAUDE_HEADERS)
        assert events[-1]["type"] == "message_stop"
        usages.append(events[-2]["usage"])
    assert usages[0]["cache_read_input_tokens"] == 0
    assert usages[1]["cache_read_input_tokens"] > 0.7 * usages[0]["input_tokens"]


def test_claude_code_counts_tokens(live: Live) -> None:
    def count(hash_: str) -> int:
        body = claude(FIRST, hash_)
        known = {key: body[key] for key in ("model", "messages", "system", "tools", "thinking")}
        response = live.post("/v1/messages/count_tokens?beta=true", known, headers=CLAUDE_HEADERS)
        assert response.status_code == 200, response.text
        n_tokens: int = response.json()["input_tokens"]
        return n_tokens

    assert count("fa690") == count("71feaaaa") > len(LONG_TEXT)


def test_only_the_billing_line_is_left_out() -> None:
    billing = "x-anthropic-billing-header: cc_version=2.1.87; cch=1;"
    for system, words in (
        ([{"type": "text", "text": billing}, {"type": "text", "text": "Be kind."}], "Be kind."),
        ([{"type": "text", "text": f"{billing}\nBe kind."}], "Be kind."),
        (f"{billing}\nBe kind.", "Be kind."),
        (f"Be kind.\n{billing}", f"Be kind.\n{billing}"),
        ([{"type": "text", "text": "Be kind."}, {"type": "text", "text": billing}], f"Be kind.{billing}"),
        (billing, None),
    ):
        body = MessagesBody.model_validate({"messages": FIRST, "max_tokens": 5, "system": system})
        told = body.chat().messages
        assert (told[0]["content"] if told[0]["role"] == "system" else None) == words


def test_claude_codes_web_search_is_refused_by_name(live: Live) -> None:
    """It comes in a request of its own, for its tool WebSearch: the agent goes on without."""
    tool = {"type": "web_search_20250305", "name": "web_search", "max_uses": 8}
    response = live.post(CLAUDE, claude(FIRST, "1", tools=[tool]), headers=CLAUDE_HEADERS)
    assert response.status_code == 400
    message = response.json()["error"]["message"]
    assert "tools[0].type" in message
    assert '"web_search_20250305"' in message
    assert "runs no tools itself" in message


# Codex CLI: POST /v1/responses

CODEX = "/v1/responses"
PATCH = 'start: begin_patch hunk+ end_patch\nbegin_patch: "*** Begin Patch" LF'
CODEX_TOOLS = [
    {
        "type": "function",
        "name": "exec_command",
        "description": "Runs a command.",
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {"cmd": {"type": "string"}, "yield_time_ms": {"type": "number"}},
            "required": ["cmd"],
            "additionalProperties": False,
        },
    },
    {
        "type": "custom",
        "name": "apply_patch",
        "description": "Edits files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": PATCH},
    },
    {"type": "web_search", "external_web_access": False},
    {"type": "image_generation", "output_format": "png"},
    {
        "type": "namespace",
        "name": "mcp__repl",
        "description": "A server.",
        "tools": [{"type": "function", "name": "js", "description": "Runs code.", "strict": False, "parameters": {}}],
    },
]


def codex(items: list[Any], **fields: Any) -> dict[str, Any]:
    """A request of Codex CLI for a model that it does not know. For one that reasons `reasoning` is an object."""
    return {
        "model": "fake",
        "instructions": f"You are a coding agent. {LONG_TEXT}",
        "input": items,
        "tools": CODEX_TOOLS,
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": None,
        "store": False,
        "stream": True,
        "include": [],
        "prompt_cache_key": "0199b1f0-0000-7000-8000-000000000000",
        "client_metadata": {"x-codex-installation-id": "0199b1f0-0000-7000-8000-000000000001"},
        **fields,
    }


ITEMS: list[Any] = [
    {
        "type": "message",
        "role": "developer",
        "content": [{"type": "input_text", "text": "<permissions instructions>Read only.</permissions instructions>"}],
    },
    {
        "type": "message",
        "role": "user",
        "content": [{"type": "input_text", "text": "<environment_context>\n<cwd>/tmp</cwd>\n</environment_context>"}],
    },
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "List the files."}]},
]
LATER: list[Any] = [
    *ITEMS,
    {"type": "reasoning", "summary": [], "encrypted_content": None},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
    {"type": "function_call", "name": "exec_command", "arguments": '{"cmd":"ls"}', "call_id": "call_1"},
    {"type": "function_call_output", "call_id": "call_1", "output": "a.txt"},
    {"type": "function_call", "name": "js", "namespace": "mcp__repl", "arguments": "{}", "call_id": "call_2"},
    {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "1"}]},
    {
        "type": "custom_tool_call",
        "status": "completed",
        "call_id": "call_3",
        "name": "apply_patch",
        "input": "*** Begin Patch",
    },
    {"type": "custom_tool_call_output", "call_id": "call_3", "output": "Done"},
]


def test_codex_gets_answers_and_its_second_turn_hits_the_cache(live: Live) -> None:
    usages = []
    for items in (ITEMS, LATER):
        events = live.events(CODEX, codex(items, max_output_tokens=20))
        assert events[-1]["type"] == "response.incomplete"
        usages.append(events[-1]["response"]["usage"])
    cached = [usage["input_tokens_details"]["cached_tokens"] for usage in usages]
    assert cached[0] < usages[0]["input_tokens"]
    assert cached[1] > 0.9 * usages[0]["input_tokens"]


def test_codex_tools_are_functions_for_the_model() -> None:
    chat = ResponsesBody.model_validate(codex(LATER)).chat()
    functions = {function.name: function for function in chat.calls.functions}
    assert list(functions) == ["exec_command", "apply_patch", "mcp__repl__js"]
    assert PATCH in (functions["apply_patch"].description or "")
    assert functions["apply_patch"].parameters == {
        "type": "object",
        "properties": {"input": {"type": "string"}},
        "required": ["input"],
        "additionalProperties": False,
    }
    calls = [call["function"] for message in chat.messages for call in message.get("tool_calls", ())]
    assert calls == [
        {"name": "exec_command", "arguments": {"cmd": "ls"}},
        {"name": "mcp__repl__js", "arguments": {}},
        {"name": "apply_patch", "arguments": {"input": "*** Begin Patch"}},
    ]
    assert [message["role"] for message in chat.messages[-6:]] == ["assistant", "tool"] * 3


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_calls_of_codex_tools_come_back_as_its_items(size: int) -> None:
    body = ResponsesBody.model_validate(codex(ITEMS))
    written = (
        '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "*** \\"Begin\\"\\n"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "mcp__repl__js", "arguments": {"code": "1"}}\n</tool_call>'
    )
    shape = ResponseShape(body, "m", blocks=CallReader(STYLES["hermes"]))
    parts = [written[at : at + size] for at in range(0, len(written), size)]
    events = [event for part in parts for event in shape.chunks(0, Delta(part), Usage())]
    events += shape.chunks(0, Delta(finish="stop"), Usage())
    patch, js = events[-1]["response"]["output"]
    assert (patch["type"], patch["name"], patch["input"]) == ("custom_tool_call", "apply_patch", '*** "Begin"\n')
    assert (js["type"], js["namespace"], js["name"]) == ("function_call", "mcp__repl", "js")
    assert js["arguments"] == '{"code": "1"}'
    deltas = [event["delta"] for event in events if event["type"] == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == patch["input"]
    done = [event for event in events if event["type"] == "response.output_item.done"]
    assert [event["item"] for event in done] == [patch, js]


@pytest.mark.parametrize("kind", ["web_search_preview_2030", "function_2"])
def test_other_tools_are_refused_by_name(live: Live, kind: str) -> None:
    error = refused(live, CODEX, codex(ITEMS, tools=[{"type": kind}]))
    assert error["param"] == "tools[0].type"
    assert (
        f'type "{kind}" is not supported: only "function" or "custom"; this server runs no tools itself'
        in error["message"]
    )
