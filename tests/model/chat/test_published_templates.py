"""Formats of published models' templates. Oracle: transformers' apply_chat_template with the same tokenizer."""

import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from model.chat.formats import load_chat
from model.chat.jinja import JinjaChat
from model.checkpoint.resolve import resolve
from model.errors import ParameterError
from model.tokenizers.base import Tokenizer
from model.tokenizers.load import load_tokenizer
from tests.model.chat.published import (
    ANSWER,
    CALL,
    CALLED,
    MERGED_SYSTEM,
    STYLE_OF,
    SYSTEM,
    TEMPLATES,
    TEXT_ARGUMENTS,
    TOOL,
    UNDEFINED_TOOLS,
    USER,
    source,
)

Json = dict[str, Any]


@pytest.fixture(scope="module")
def directory() -> Path:
    return resolve("smollm2-135m-instruct")


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return load_tokenizer(directory)


@pytest.fixture(scope="module")
def oracle(directory: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(directory)


def chat_of(name: str, directory: Path, tokenizer: Tokenizer) -> JinjaChat:
    chat = load_chat(directory, tokenizer, source(name))
    assert isinstance(chat, JinjaChat)
    return chat


def theirs(oracle: PreTrainedTokenizerBase, name: str, messages: Sequence[Json], **values: Any) -> list[int]:
    """The oracle's ids for messages and variables as the template takes them."""
    if name in MERGED_SYSTEM and messages[0]["role"] == "system":
        first = {"role": "user", "content": f"{messages[0]['content']}\n\n{messages[1]['content']}"}
        messages = [first, *messages[2:]]
    if name in TEXT_ARGUMENTS:
        text = json.dumps(CALL["function"]["arguments"], ensure_ascii=False)  # type: ignore[index]
        call = {**CALL, "function": {"name": "weather", "arguments": text}}
        messages = [{**message, "tool_calls": [call]} if "tool_calls" in message else message for message in messages]
    if name == "firefunction-v2":
        tools = values.pop("tools", None)
        values["functions"] = json.dumps(tools, ensure_ascii=False, indent=2) if tools else ""
        values["datetime"] = datetime.now().astimezone().strftime("%b %d %Y")
    if name in UNDEFINED_TOOLS and not values.get("tools"):
        values["tools"] = []
    found = oracle.apply_chat_template(
        [*messages], chat_template=source(name), add_generation_prompt=True, return_dict=True, **values
    )
    ids: list[int] = found["input_ids"]
    return ids


def test_every_template_has_its_line() -> None:
    assert {path.stem for path in TEMPLATES.glob("*.jinja")} == STYLE_OF.keys()
    readme = (TEMPLATES / "README.md").read_text()
    assert all(name in readme for name in STYLE_OF)


@pytest.mark.parametrize("name", STYLE_OF)
def test_conversations_have_the_ids_of_transformers(
    name: str, directory: Path, tokenizer: Tokenizer, oracle: PreTrainedTokenizerBase
) -> None:
    chat = chat_of(name, directory, tokenizer)
    assert chat.call_style == STYLE_OF[name]
    for messages in ([USER], [USER, ANSWER, USER], [SYSTEM, USER, ANSWER, USER]):
        assert chat.encode(messages) == theirs(oracle, name, messages)
        assert "Be brief." in chat.render([SYSTEM, USER])


@pytest.mark.parametrize("name", [name for name in STYLE_OF if name not in ("gemma-2", "gemma-3", "llama-2", "zephyr")])
def test_conversations_with_tools_have_the_ids_of_transformers(
    name: str, directory: Path, tokenizer: Tokenizer, oracle: PreTrainedTokenizerBase
) -> None:
    chat = chat_of(name, directory, tokenizer)
    for messages in (CALLED, [*CALLED, ANSWER, USER], [SYSTEM, *CALLED]):
        assert chat.encode(messages, tools=[TOOL]) == theirs(oracle, name, messages, tools=[TOOL])
        assert chat.encode(messages) == theirs(oracle, name, messages)


@pytest.mark.parametrize("name", [name for name, style in STYLE_OF.items() if style is not None])
def test_tools_reach_the_template(name: str, directory: Path, tokenizer: Tokenizer) -> None:
    text = chat_of(name, directory, tokenizer).render([USER], tools=[TOOL])
    assert "Tells the weather" in text


@pytest.mark.parametrize("name", MERGED_SYSTEM)
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
    with pytest.raises(ParameterError, match="refuses these messages: there is no system role"):
        chat_of("gemma-2", directory, tokenizer).encode([SYSTEM])


def test_variables_that_the_server_sets_itself(directory: Path, tokenizer: Tokenizer) -> None:
    chat = chat_of("firefunction-v2", directory, tokenizer)
    assert "Today is 1 May." in chat.render([USER], variables={"datetime": "1 May"})
    with pytest.raises(ParameterError, match="chat template declares: datetime"):
        chat.encode([USER], variables={"functions": "[]"})
    day = datetime.now().astimezone().strftime("%b %d %Y")
    assert f"Today is {day}." in chat.render([USER])
    other = chat_of("llama-3.2", directory, tokenizer)
    assert "Today Date: 1 May\n" in other.render([USER], variables={"date_string": "1 May"})


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
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": source("gemma-3")}))
    chat = load_chat(tmp_path, tokenizer)
    assert chat is not None
    assert chat.render([USER]).endswith("<start_of_turn>user\nHow is it?<end_of_turn>\n<start_of_turn>model\n")
