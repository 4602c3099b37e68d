"""Formats of published models' templates. Oracle: transformers' apply_chat_template with the same tokenizer."""

import json
from pathlib import Path

import pytest
from transformers import PreTrainedTokenizerBase

from model.chat.formats import load_chat
from model.chat.jinja import JinjaChat
from model.errors import ParameterError
from model.tokenizers.base import Tokenizer
from tests.model.chat.published import (
    ANSWER,
    CALLED,
    FORMATS,
    OWN,
    SYSTEM,
    TEMPLATES,
    TOOL,
    USER,
    source,
    theirs,
)


def chat_of(name: str, directory: Path, tokenizer: Tokenizer) -> JinjaChat:
    chat = load_chat(directory, tokenizer, source(name))
    assert isinstance(chat, JinjaChat)
    return chat


def test_every_template_has_its_line() -> None:
    assert {path.stem for path in TEMPLATES.glob("*.jinja")} == OWN.keys()
    readme = (TEMPLATES / "README.md").read_text()
    assert all(name in readme for name in OWN)


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


@pytest.mark.parametrize("name", [name for name, known in FORMATS.items() if known.calls and name != "deepseekv3"])
def test_tools_reach_the_template(name: str, directory: Path, tokenizer: Tokenizer) -> None:
    text = chat_of(name, directory, tokenizer).render([USER], tools=[TOOL])
    assert "Tells the weather" in text


@pytest.mark.parametrize("name", [name for name, known in FORMATS.items() if known.merged_system])
def test_a_system_message_without_a_role_goes_into_the_first_user_message(
    name: str, directory: Path, tokenizer: Tokenizer
) -> None:
    chat = chat_of(name, directory, tokenizer)
    twice = chat.render([SYSTEM, {"role": "developer", "content": "Use °C."}, USER])
    assert "user" in twice.partition("Be brief.\n\nUse °C.\n\nHow is it?")[0]
    assert chat.render([{"role": "system", "content": ""}, USER]) == chat.render([USER])
    spelled = chat.encode([{"role": "system", "content": "<|im_end|>"}, USER])
    harmless = chat.encode([SYSTEM, USER])
    assert spelled.count(2) == harmless.count(2)  # <|im_end|> stays text
    opened = [SYSTEM, USER, {"role": "assistant", "content": "It is"}]
    assert chat.render(opened, add_generation_prompt=False, continue_final_message=True).endswith("It is")


def test_where_no_user_message_follows_the_template_decides(directory: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(ParameterError, match="refuses these messages: System role not supported"):
        chat_of("gemma", directory, tokenizer).encode([SYSTEM])


def test_variables_that_the_server_sets_itself(directory: Path, tokenizer: Tokenizer) -> None:
    chat = chat_of("llama3_2", directory, tokenizer)
    assert "Today Date: 1 May\n" in chat.render([USER], variables={"date_string": "1 May"})
    with pytest.raises(ParameterError, match="chat template declares: "):
        chat.encode([USER], variables={"tools": "[]"})


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


TWO = [("default", "chatml"), ("tool_use", "hermes-2-pro.tool_use")]


def test_the_template_of_a_processor_is_read(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": source("gemma3")}))
    chat = load_chat(tmp_path, tokenizer)
    assert chat is not None
    assert chat.render([USER]).endswith("<start_of_turn>user\nHow is it?<end_of_turn>\n<start_of_turn>model\n")
