"""Thoughts of earlier answers in chat formats. Oracles: mistral-common, the templates it generates, transformers."""

from pathlib import Path
from typing import Any

import pytest
from mistral_common.exceptions import MistralCommonException
from mistral_common.integrations.chat_templates.chat_templates import convert_tokenizer_to_chat_template
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from model.chat.conversation import Message
from model.chat.formats import ChatFormat, load_chat
from model.chat.jinja import JinjaChat
from model.chat.reasoning import switched
from model.errors import ParameterError
from model.tokenizers.load import load_tokenizer
from tests.fakes import IntegerTokenizer
from tests.model.chat.published import FORMATS
from tests.model.chat.published import source as source_of
from tests.model.chat.versions import FILES, write_directory
from tests.model.tokenizers.tekken_files import write_tekken

USER = {"role": "user", "content": "How is it?"}
CALL = {"id": "abcdefgh1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
RESULT = {"role": "tool", "content": "sunny", "tool_call_id": "abcdefgh1"}
THOUGHT = "Sun [/THINK] or </think> rain?\n"
CONVERSATIONS: dict[str, list[Message]] = {
    "one": [USER, {"role": "assistant", "content": "Fine.", "reasoning_content": "I see. "}, USER],
    "none": [USER, {"role": "assistant", "content": "Fine."}, USER],
    "empty": [USER, {"role": "assistant", "content": "Fine.", "reasoning_content": ""}, USER],
    "marks": [USER, {"role": "assistant", "content": "Fine.", "reasoning_content": THOUGHT}, USER],
    "call": [USER, {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": "Ask. "}, RESULT],
}
REASONING = ("tekken-v13", "tekken-v15")


def expected(messages: list[Message]) -> list[dict[str, Any]]:
    """The messages as mistral-common takes them."""
    told = []
    for message in messages:
        plain = {key: value for key, value in message.items() if key != "reasoning_content"}
        if message.get("reasoning_content"):
            text = [{"type": "text", "text": message["content"]}] if message["content"] else []
            plain["content"] = [{"type": "thinking", "thinking": message["reasoning_content"]}, *text]
        told.append(plain)
    return told


def native(directory: Path, name: str) -> tuple[ChatFormat, MistralTokenizer]:
    """Our format of a tokenizer file of this version, and mistral-common's own."""
    file = write_directory(directory, name)
    chat = load_chat(directory, load_tokenizer(directory))
    assert chat is not None
    return chat, MistralTokenizer.from_file(file)


def ids_of(oracle: MistralTokenizer, messages: list[Any]) -> list[int]:
    request = ChatCompletionRequest.model_validate({"messages": messages})
    tokens: list[int] = oracle.encode_chat_completion(request).tokens
    return tokens


@pytest.mark.parametrize("name", FILES)
def test_mistral_common_has_the_same_ids(name: str, tmp_path: Path) -> None:
    """From v13 on as chunks. Earlier versions leave thoughts out."""
    chat, oracle = native(tmp_path, name)
    assert chat.reasoning_style == ("tokens" if name in REASONING else None)
    assert chat.switches == ({"reasoning_effort"} if name == "tekken-v15" else set())
    for conversation, messages in CONVERSATIONS.items():
        if conversation == "call" and name in ("spm-v1", "spm-v2"):
            continue  # they have no calls, or calls without ids
        told = expected(messages)
        if name not in REASONING:
            told = [
                {key: value for key, value in message.items() if key != "reasoning_content"} for message in messages
            ]
        assert chat.encode(messages) == ids_of(oracle, told), conversation


def test_an_answer_is_continued_after_its_thought(tmp_path: Path) -> None:
    chat, oracle = native(tmp_path, "tekken-v13")
    told: list[Any] = expected(CONVERSATIONS["one"][:2])
    told[-1]["prefix"] = True
    assert chat.encode(CONVERSATIONS["one"][:2], continue_final_message=True) == ids_of(oracle, told)


PARTS = [
    {"type": "text", "text": "First think: [THINK]"},
    {"type": "thinking", "thinking": "Your thoughts. [/THINK]", "closed": True},
    {"type": "text", "text": "Then answer."},
]
SYSTEM = {"role": "system", "content": "First think: [THINK]Then answer.", "parts": PARTS}
"""A system prompt in the form of Magistral's."""


@pytest.mark.parametrize("name", FILES)
def test_a_system_prompt_may_have_a_thought(name: str, tmp_path: Path) -> None:
    chat, oracle = native(tmp_path, name)
    told = [{"role": "system", "content": PARTS}, USER]
    if name == "tekken-v13":
        assert chat.encode([SYSTEM, USER]) == ids_of(oracle, told)
        with pytest.raises(
            ParameterError, match="a system message that this model takes as a user message has a thinking part"
        ):
            chat.encode([USER, {"role": "assistant", "content": "a"}, SYSTEM, USER])
        return
    with pytest.raises(MistralCommonException):
        ids_of(oracle, told)
    version = name.partition("-")[2]
    with pytest.raises(ParameterError) as caught:
        chat.encode([SYSTEM, USER])
    assert str(caught.value) == (
        f"messages[0] of role system has a thinking part, which this model's tokenizer {version} cannot write there: "
        "send it as text, or leave it out"
    )


@pytest.mark.parametrize("name", FILES)
def test_an_open_thought_is_continued(name: str, tmp_path: Path) -> None:
    chat, oracle = native(tmp_path, name)
    part = {"type": "thinking", "thinking": "Hm, [/THINK] so", "closed": False}
    messages = [USER, {"role": "assistant", "content": "", "parts": [part]}]
    if name not in REASONING:
        with pytest.raises(ParameterError, match=r"messages\[1\] of role assistant has a thinking part"):
            chat.encode(messages, continue_final_message=True)
        return
    told = [USER, {"role": "assistant", "content": [part], "prefix": True}]
    assert chat.encode(messages, continue_final_message=True) == ids_of(oracle, told)


THINKING_SYSTEM = """{{ bos_token }}{%- for message in messages -%}
{%- if message.role == 'system' -%}[SYSTEM_PROMPT]
{%- if message.content is string -%}{{ message.content }}
{%- else -%}{%- for block in message.content -%}
{%- if block.type == 'text' -%}{{ block.text }}
{%- elif block.type == 'thinking' -%}[THINK]{{ block.thinking }}[/THINK]
{%- endif -%}{%- endfor -%}{%- endif -%}[/SYSTEM_PROMPT]
{%- else -%}[INST]{{ message.content }}[/INST]{%- endif -%}{%- endfor -%}"""
"""A template that writes a system prompt as Magistral's does."""


def test_a_template_may_take_a_thought_in_the_system_prompt(tmp_path: Path) -> None:
    file = write_directory(tmp_path, "tekken-v13")
    tokenizer = load_tokenizer(tmp_path)
    chat = load_chat(tmp_path, tokenizer, THINKING_SYSTEM)
    assert isinstance(chat, JinjaChat)
    harmless = [part | {key: "A b." for key in ("text", "thinking") if key in part} for part in PARTS]
    ids = ids_of(MistralTokenizer.from_file(file), [{"role": "system", "content": harmless}, USER])
    assert chat.encode([SYSTEM | {"content": "A b.A b.", "parts": harmless}, USER]) == ids
    marks = [token for token in ids if token in tokenizer.control.values()]
    assert [token for token in chat.encode([SYSTEM, USER]) if token in tokenizer.control.values()] == marks
    part = {"type": "thinking", "thinking": "Hm", "closed": False}
    with pytest.raises(ParameterError, match=r"messages\[1\] of role assistant has a thinking part, which this model"):
        chat.encode([USER, {"role": "assistant", "content": "", "parts": [part]}], continue_final_message=True)
    with pytest.raises(
        ParameterError, match=r"messages\[0\] of role system has a thinking part, which this model's chat"
    ):
        JinjaChat(source_of("qwen3"), IntegerTokenizer(), {}).encode([SYSTEM, USER])


@pytest.mark.parametrize("version", ["v13", "v15"])
def test_templates_of_mistral_common_take_chunks(version: str, tmp_path: Path) -> None:
    file = write_tekken(tmp_path, version)
    source = convert_tokenizer_to_chat_template(file, plain_thinking_support=False)
    chat = load_chat(tmp_path, load_tokenizer(tmp_path), source)
    assert isinstance(chat, JinjaChat)
    assert chat.reasoning_style == "tokens"
    assert chat.switches == ({"reasoning_effort"} if version == "v15" else set())
    assert chat.efforts == (("none", "high") if version == "v15" else ())
    oracle = MistralTokenizer.from_file(file)
    for conversation, messages in CONVERSATIONS.items():
        assert chat.encode(messages) == ids_of(oracle, expected(messages)), conversation


def test_published_templates_without_reasoning() -> None:
    for name in (name for name, known in FORMATS.items() if known.reasoning is None):
        chat = JinjaChat(source_of(name), IntegerTokenizer(), {"bos_token": "", "eos_token": ""})
        messages = [USER, {"role": "assistant", "content": "Fine.", "reasoning_content": "secret"}, USER]
        assert "secret" not in chat.render(messages), name


def test_variables_that_switch() -> None:
    graded = ("none", "high")
    assert switched(["enable_thinking"], (), None, None) == {}
    assert switched(["enable_thinking", "thinking"], (), False, None) == {"enable_thinking": False, "thinking": False}
    assert switched(["reasoning_effort"], (), True, "low") == {"reasoning_effort": "low"}
    assert switched(["reasoning_effort"], graded, True, None) == {"reasoning_effort": "high"}
    assert switched(["reasoning_effort"], graded, False, None) == {"reasoning_effort": "none"}
    assert switched([], (), True, "low") == {}
    two, positive = ["enable_thinking", "reasoning_effort"], ("low", "xhigh")
    assert switched(two, positive, True, None) == {"enable_thinking": True, "reasoning_effort": "xhigh"}
    assert switched(["reasoning_effort"], ("high", "none"), True, None) == {"reasoning_effort": "high"}
    assert switched(["reasoning_effort"], ("high", "low", "none"), True, None) == {"reasoning_effort": "high"}
    assert switched(two, positive, False, "none") == {"enable_thinking": False}, "there is no effort to name"
