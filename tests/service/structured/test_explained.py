"""Tools for models whose chat template has none, through the formats of published templates."""

from pathlib import Path

import pytest

from model.chat.formats import load_chat
from model.tokenizers.base import Tokenizer
from model.tokenizers.load import load_tokenizer
from service.schema.tools import Function
from service.structured.call_style import STYLES
from service.structured.tool_prompt import explained
from tests.model.chat.published import ANSWER, CALLED, FORMATS, SYSTEM, TOOL, USER, source


@pytest.fixture(scope="module")
def tokenizer(embedded_files: Path) -> Tokenizer:
    return load_tokenizer(embedded_files)


@pytest.mark.parametrize("name", [name for name, known in FORMATS.items() if known.style is None])
def test_tools_calls_and_results_reach_the_model(name: str, embedded_files: Path, tokenizer: Tokenizer) -> None:
    """Also where the template refuses system messages, or wants users and assistants to take turns."""
    chat = load_chat(embedded_files, tokenizer, source(name))
    assert chat is not None
    function = Function.model_validate(TOOL["function"])
    for messages in (CALLED, [SYSTEM, *CALLED, ANSWER, USER]):
        text = chat.render(explained(messages, [function]))
        assert '"name": "weather", "description": "Tells the weather"' in text
        assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>' in text
        assert "<tool_response>\nsunny\n</tool_response>" in text
        assert text.count("Be brief.") == messages.count(SYSTEM)


def test_styles_of_templates_are_declared() -> None:
    assert {known.style for known in FORMATS.values() if known.style} <= STYLES.keys()
