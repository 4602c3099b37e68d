"""Keeps what clients say: whole for a person, and short for the tests that replay it.

With AGENTS_RECORDS=FOLDER every test writes its exchanges there, and the short form to recorded/NAME.json.
"""

import getpass
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from tests.agents.proxy import Record

RECORDED = Path(__file__).parent / "recorded"
LONGEST = 100
"""Characters of a text in the short form."""
TOOLS = 2
"""Tools of each type in the short form."""
BYTES = 8000
DROPPED = {"description", "title", "$schema", "examples", "markdownDescription"}
LOCAL = re.compile(r"(/[\w.-]+)*/(?:tmp|work|root|home)/[\w./-]*")
IDENTITY = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b[0-9a-f]{32,}\b")


def keep(name: str, test: str, record: Record) -> None:
    """Write the exchanges of a test if somebody asks for them."""
    if not (folder := os.environ.get("AGENTS_RECORDS")):
        return
    whole = Path(folder) / name / f"{test}.json"
    whole.parent.mkdir(parents=True, exist_ok=True)
    whole.write_text(json.dumps([vars(each) for each in record.exchanges], indent=1))


def text(value: str) -> str:
    """A text without this machine's paths, users and numbers, cut."""
    value = IDENTITY.sub("00000000-0000-0000-0000-000000000000", LOCAL.sub("/folder", value))
    value = value.replace(getpass.getuser(), "user")
    return value if len(value) <= LONGEST else value[:LONGEST] + "..."


def short(value: Any, key: str = "") -> Any:
    """The same shape with short texts, few tools and no words about them."""
    if isinstance(value, dict):
        return {
            name: short(item, name) for name, item in value.items() if not (key != "properties" and name in DROPPED)
        }
    if isinstance(value, list):
        return [short(item) for item in (few(value) if key == "tools" else value)]
    return text(value) if isinstance(value, str) else value


def few(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first tools of each type."""
    kept: dict[str, list[dict[str, Any]]] = {}
    for tool in tools:
        kept.setdefault(tool.get("type", ""), []).append(tool)
    return [tool for same in kept.values() for tool in same[:TOOLS]]


def shape(value: Any) -> str:
    """What two requests that need one test have in common: the names of their fields, and roles and types."""
    if isinstance(value, dict):
        inner = (f"{key}={item}" if key in ("role", "type") else f"{key}:{shape(item)}" for key, item in value.items())
        return "{" + ",".join(sorted(inner)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(sorted({shape(item) for item in value})) + "]"
    return type(value).__name__


def main() -> None:
    """Write recorded/NAME.json from the folder that AGENTS_RECORDS named: one request of each shape."""
    for folder in sorted(Path(sys.argv[1]).iterdir()):
        kept: dict[str, dict[str, Any]] = {}
        for file in sorted(folder.glob("*.json")):
            for each in json.loads(file.read_text()):
                if each["method"] == "POST":
                    request = {"path": each["path"], "body": short(each["sent"])}
                    kept.setdefault(f"{each['path']} {shape(request['body'])}", request)
        while len(written := json.dumps([*kept.values()], indent=1)) > BYTES:
            kept.popitem()
        if kept:
            (RECORDED / f"{folder.name}.json").write_text(written + "\n")


if __name__ == "__main__":
    main()
