"""Vercel's AI SDK with its provider for Mistral."""

from pathlib import Path

from tests.agents.programs import Programs
from tests.agents.proxy import Record


def test_its_turns(programs: Programs, record: Record) -> None:
    programs.script(Path(__file__).with_name("turns.js"), SERVER=record.url)
