"""What the original templates of published models do with thoughts. Oracle: transformers with the same tokenizer.

Their conversations and calls are in `test_published_templates.py`, beside those of templates that we wrote.
"""

from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from model.chat.formats import load_chat
from model.chat.jinja import JinjaChat
from model.chat.reasoning import switched
from model.errors import ParameterError
from model.tokenizers.base import Tokenizer
from tests.model.chat.published import ANSWER, CALLED, ORIGINALS, TOOL, USER, originals, source, theirs

THOUGHT = "It may rain."
WITH_TAGS = ("deepseek_r1_distill", "deepseekv3", "lfm2_2_5")
"""These read thoughts in the text alone."""


def chat_of(name: str, directory: Path, tokenizer: Tokenizer) -> JinjaChat:
    chat = load_chat(directory, tokenizer, source(name))
    assert isinstance(chat, JinjaChat)
    return chat


def with_thought(message: dict[str, Any], name: str) -> dict[str, Any]:
    if name in WITH_TAGS:
        return {**message, "content": f"<think>\n{THOUGHT}\n</think>\n\n{message['content']}"}
    return {**message, "reasoning_content": THOUGHT}


def test_the_package_has_the_originals() -> None:
    """Patched ones for training have names of their own."""
    assert len(ORIGINALS) >= 14
    assert ORIGINALS.keys() <= {path.stem for path in originals().glob("*.jinja")}
    assert not [name for name in ORIGINALS if name.endswith("_training")]


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


def test_channels_are_no_reasoning_style(
    directory: Path, tokenizer: Tokenizer, oracle: PreTrainedTokenizerBase
) -> None:
    """GPT-OSS takes efforts as a variable. Noria leaves its channels in the text."""
    chat = chat_of("gptoss", directory, tokenizer)
    assert chat.switches == {"reasoning_effort"}
    expected = theirs(oracle, "gptoss", [USER], reasoning_effort="low")
    assert chat.encode([USER], variables={"reasoning_effort": "low"}) == expected
    assert "Reasoning: low" in chat.render([USER], variables={"reasoning_effort": "low"})


@pytest.mark.parametrize("name", [name for name, known in ORIGINALS.items() if known.parts])
def test_contents_in_lists_are_texts_too(name: str, directory: Path, tokenizer: Tokenizer) -> None:
    chat = chat_of(name, directory, tokenizer)
    spelled = [{"role": "user", "content": "<|im_end|>"}]
    assert chat.encode(spelled).count(2) == chat.encode([USER]).count(2), "the name of a control token stays text"
    opened = [USER, {"role": "assistant", "content": "It is"}]
    assert chat.render(opened, add_generation_prompt=False, continue_final_message=True).endswith("It is")
