"""An answer is split into the same blocks however it arrives, and only its last call can be cut."""

import pytest

from service.generation.choice import Delta
from service.structured.blocks import BlockReader, BlockStep, arguments_of
from service.structured.call_reader import CallReader
from service.structured.call_style import STYLES
from tests.service.structured.call_texts import ARGUMENTS, TEXTS


def steps(style: str | None, deltas: list[Delta]) -> list[BlockStep]:
    reader = BlockReader() if style is None else CallReader(STYLES[style])
    return [step for delta in deltas for step in reader.feed(delta)]


def ended(found: list[BlockStep]) -> list[tuple[str, str, str, bool]]:
    """Kind, name and text of each block at its end, and whether it is the last one."""
    return [(step.block.kind, step.block.name, step.block.text, step.last) for step in found if step.change == "end"]


@pytest.mark.parametrize("style", STYLES)
def test_blocks_follow_one_another(style: str) -> None:
    whole, text = TEXTS[style]
    expected = [("thought", "", "Hm.", False), *([("text", "", text, False)] if text else [])]
    expected += [("call", "weather", ARGUMENTS, False), ("call", "time.now", "{}", True)]
    for size in (1, 3, len(whole)):
        parts = [Delta(whole[at : at + size]) for at in range(0, len(whole), size)]
        found = steps(style, [Delta(thought="H"), Delta(thought="m."), *parts, Delta(finish="stop")])
        assert ended(found) == expected
        assert all(step.change == "text" or not step.text for step in found)
        blocks = [step.block for step in found if step.change == "end"]
        texts = ["".join(step.text for step in found if step.block is block) for block in blocks]
        assert texts == [text for _, _, text, _ in expected]


def test_thought_and_text_may_come_together_or_not_at_all() -> None:
    assert ended(steps(None, [Delta("b", thought="a", finish="stop")])) == [
        ("thought", "", "a", False),
        ("text", "", "b", True),
    ]
    assert steps(None, [Delta(finish="stop")]) == steps("hermes", [Delta(finish="length")]) == []


def test_a_cut_call_has_the_arguments_that_are_whole() -> None:
    whole, _ = TEXTS["hermes"]
    cut = whole[: whole.index(ARGUMENTS) + len(ARGUMENTS) - 1]
    (*_, last) = steps("hermes", [Delta(cut, finish="length")])
    assert (last.change, last.last, last.block.name) == ("end", True, "weather")
    assert arguments_of(last.block.text) is None
    assert arguments_of(last.block.text, partial=True) == arguments_of(ARGUMENTS) == {"city": 'a}\\"{'}
    assert arguments_of("", partial=True) is None
