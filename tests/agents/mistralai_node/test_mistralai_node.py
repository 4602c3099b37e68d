"""Mistral's own package for Node."""

from pathlib import Path

from tests.agents.programs import Programs
from tests.agents.proxy import Record


def test_its_turns(programs: Programs, record: Record) -> None:
    programs.script(Path(__file__).with_name("turns.js"), SERVER=record.url)
    assert any(
        each.sent["messages"][1].get("prefix") is False
        for each in record.exchanges
        if len(each.sent.get("messages", [])) > 2
    )
