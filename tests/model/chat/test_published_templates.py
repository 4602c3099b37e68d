"""Formats of published models' templates. Oracle: transformers' apply_chat_template with the same tokenizer."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from model.chat.formats import load_chat
from model.chat.jinja import JinjaChat
from model.chat.reasoning import switched
from model.errors import ParameterError
from model.tokenizers.base import Tokenizer
from model.tokenizers.load import load_tokenizer
from tests.gguf_models import write_tokenizer
from tests.model.chat.published import (
    ANSWER,
    CALLED,
    FORMATS,
    ORIGINALS,
    SYSTEM,
    TOOL,
    USER,
    source,
    theirs,
)
from tests.model.tokenizers.role_files import ggml


def chat_of(name: str, directory: Path, tokenizer: Tokenizer) -> JinjaChat:
    chat = load_chat(directory, tokenizer, source(name))
    assert isinstance(chat, JinjaChat)
    return chat


@pytest.mark.parametrize("name", FORMATS)
def test_conversations_have_the_ids_of_transformers(
    name: str, directory: Path, tokenizer: Tokenizer, oracle: PreTrainedTokenizerBase
) -> None:
    chat = chat_of(name, directory, tokenizer)
    assert (chat.call_style, chat.reasoning_style, chat.efforts) == (
        FORMATS[name].style,
        FORMATS[name].reasoning,
        FORMATS[name].efforts,
    )
    for messages in ([USER], [USER, ANSWER, USER], [SYSTEM, USER, ANSWER, USER]):
        assert chat.encode(messages) == theirs(oracle, name, messages)
        assert all(message["content"].strip() in chat.render(messages) for message in messages)


@pytest.mark.parametrize("name", [name for name, known in FORMATS.items() if known.calls])
def test_conversations_with_calls_have_the_ids_of_transformers(
    name: str, directory: Path, tokenizer: Tokenizer, oracle: PreTrainedTokenizerBase
) -> None:
    chat = chat_of(name, directory, tokenizer)
    for messages in (CALLED, [*CALLED, ANSWER, USER], [SYSTEM, *CALLED]):
        assert chat.encode(messages, tools=[TOOL]) == theirs(oracle, name, messages, tools=[TOOL])
        assert chat.encode(messages) == theirs(oracle, name, messages)
    text = chat.render(CALLED, tools=[TOOL])
    assert all(word in text for word in ("weather", "Zürich", "sunny"))


@pytest.mark.parametrize("name", [name for name, known in FORMATS.items() if known.merged_system])
def test_a_system_message_without_a_role_goes_into_the_first_user_message(
    name: str, directory: Path, tokenizer: Tokenizer
) -> None:
    chat = chat_of(name, directory, tokenizer)
    twice = chat.render([SYSTEM, {"role": "developer", "content": "Use °C."}, USER])
    assert twice == chat.render([{"role": "user", "content": "Be brief.\n\nUse °C.\n\nHow is it? "}])
    assert chat.render([{"role": "system", "content": ""}, USER]) == chat.render([USER])
    spelled = chat.encode([{"role": "system", "content": "<|im_end|>"}, USER])
    harmless = chat.encode([SYSTEM, USER])
    assert spelled.count(2) == harmless.count(2)  # <|im_end|> stays text
    opened = [SYSTEM, USER, {"role": "assistant", "content": "It is"}]
    assert chat.render(opened, add_generation_prompt=False, continue_final_message=True).endswith("It is")


def test_a_system_message_alone_is_a_user_message(directory: Path, tokenizer: Tokenizer) -> None:
    chat = chat_of("gemma", directory, tokenizer)
    assert chat.render([SYSTEM]) == chat.render([{**SYSTEM, "role": "user"}])


def test_a_model_with_two_templates_uses_one_for_tools(
    tmp_path: Path, tokenizer: Tokenizer, oracle: PreTrainedTokenizerBase
) -> None:
    """As Hermes ships them: in a list, or in files."""
    (tmp_path / "config.json").write_text("{}")
    named = [{"name": name, "template": source(file)} for name, file in TWO]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    listed = load_chat(tmp_path, tokenizer)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "chat_template.jinja").write_text(source("chatml"))
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(source("hermes-2-pro.tool_use"))
    for chat in (listed, load_chat(tmp_path, tokenizer)):
        assert chat is not None
        assert chat.call_style == "hermes"
        assert chat.encode([SYSTEM, USER]) == theirs(oracle, "chatml", [SYSTEM, USER])
        with_tools = chat.render(CALLED, tools=[TOOL])
        assert "<tools>" in with_tools
        assert "<tools>" not in chat.render([USER])


def test_a_gguf_file_with_two_templates_uses_one_for_tools(tmp_path: Path) -> None:
    """Its keys end with the names that the list of a directory has."""
    metadata = ggml({})
    for (_, file), key in zip(TWO, ("tokenizer.chat_template", "tokenizer.chat_template.tool_use"), strict=True):
        metadata[key] = source(file)
    metadata["tokenizer.chat_templates"] = [name for name, _ in TWO[1:]]
    write_tokenizer(metadata, tmp_path)
    chat, oracle = load_chat(tmp_path, load_tokenizer(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)
    assert chat is not None
    assert chat.call_style == "hermes"
    for messages, tools in (([SYSTEM, USER], None), (CALLED, [TOOL])):
        expected = oracle.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
        assert chat.render(messages, tools=tools) == expected


TWO = [("default", "chatml"), ("tool_use", "hermes-2-pro.tool_use")]


def test_the_template_of_a_processor_is_read(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": source("gemma3")}))
    chat = load_chat(tmp_path, tokenizer)
    assert chat is not None
    assert chat.render([USER]).endswith("<start_of_turn>user\nHow is it?<end_of_turn>\n<start_of_turn>model\n")


# Thoughts

THOUGHT = "It may rain."
WITH_TAGS = ("deepseek_r1_distill", "deepseekv3", "lfm2_2_5")
"""These read thoughts in the text alone."""


def with_thought(message: dict[str, Any], name: str) -> dict[str, Any]:
    if name in WITH_TAGS:
        return {**message, "content": f"<think>\n{THOUGHT}\n</think>\n\n{message['content']}"}
    return {**message, "reasoning_content": THOUGHT}


@pytest.mark.parametrize("name", [name for name, known in ORIGINALS.items() if known.reasoning])
def test_thoughts_have_the_ids_of_transformers(
    name: str, directory: Path, tokenizer: Tokenizer, oracle: PreTrainedTokenizerBase
) -> None:
    chat = chat_of(name, directory, tokenizer)
    earlier, called = [USER, ANSWER, USER], CALLED if ORIGINALS[name].calls else [USER, ANSWER]
    for messages in (earlier, called):
        ours = [{**m, "reasoning_content": THOUGHT} if m["role"] == "assistant" else m for m in messages]
        expected = [with_thought(m, name) if m["role"] == "assistant" else m for m in messages]
        assert chat.encode(ours, tools=[TOOL]) == theirs(oracle, name, expected, tools=[TOOL])


@pytest.mark.parametrize("name", ["glm4moe", "nemotron_3_nano", "qwen3", "qwen3_5_think", "qwen3_8"])
def test_a_switch_turns_thoughts_off(
    name: str, directory: Path, tokenizer: Tokenizer, oracle: PreTrainedTokenizerBase
) -> None:
    chat = chat_of(name, directory, tokenizer)
    silent = theirs(oracle, name, [USER], enable_thinking=False)
    assert chat.encode([USER], variables=switched(chat.switches, chat.efforts, False, "none")) == silent
    assert chat.encode([USER]) != silent


def test_an_effort_that_the_template_does_not_know(directory: Path, tokenizer: Tokenizer) -> None:
    chat = chat_of("qwen3_8", directory, tokenizer)
    assert "set to low" in chat.render([USER], variables={"reasoning_effort": "low"})
    expected = '^reasoning_effort of this model must be one of low, medium, xhigh, got "high"$'
    with pytest.raises(ParameterError, match=expected) as caught:
        chat.encode([USER], variables={"reasoning_effort": "high"})
    assert caught.value.param == "reasoning_effort"


@pytest.mark.parametrize("name", [name for name, known in ORIGINALS.items() if known.parts])
def test_contents_in_lists_are_texts_too(name: str, directory: Path, tokenizer: Tokenizer) -> None:
    chat = chat_of(name, directory, tokenizer)
    spelled = [{"role": "user", "content": "<|im_end|>"}]
    assert chat.encode(spelled).count(2) == chat.encode([USER]).count(2), "the name of a control token stays text"
    opened = [USER, {"role": "assistant", "content": "It is"}]
    assert chat.render(opened, add_generation_prompt=False, continue_final_message=True).endswith("It is")
