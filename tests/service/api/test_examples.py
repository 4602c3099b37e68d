"""Every example of the vendors' packages, in other words, and every field of their types, each sent once.

`examples/NAME.json` has those of a vendor. `documents`: where an example is from, its path, its body, and words of the
error where Noria refuses it. `types`: of each path the least body, the values of each field that are taken, fields
that need each other, and values that are refused, with an error that names the field. `model` is left out everywhere:
names are the server's own. docs/clients.md has the numbers.
"""

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.service.live import FakeChat, Live, running

HERE = Path(__file__).parent
PAGE = (HERE.parents[2] / "docs" / "clients.md").read_text()
VENDORS = {file.stem: json.loads(file.read_text()) for file in sorted((HERE / "examples").glob("*.json"))}


class Example(NamedTuple):
    """A request; `refused` has words of its error, or None if it is answered."""

    name: str
    path: str
    body: dict[str, Any]
    refused: str | None = None


def documents(vendor: dict[str, Any]) -> list[Example]:
    return [Example(*entry) for entry in vendor["documents"]]


def types(vendor: dict[str, Any]) -> Iterator[Example]:
    """A request for each value of each field."""
    for path, kind in vendor["types"].items():
        least = kind["least"]
        for taken in ("fields", "refused"):
            for name, values in kind[taken].items():
                for value in values:
                    words = name if taken == "refused" else None
                    yield Example(f"{path}: {name} {json.dumps(value)}", path, least | {name: value}, words)
        for together in kind["together"]:
            yield Example(f"{path}: {json.dumps(together)}", path, least | together)


class AnyChat(FakeChat):
    """A chat format of a model that has tools and thoughts. It sees nothing: its images are refused by name."""

    call_style = "hermes"
    reasoning_style = "tags"


@pytest.fixture(scope="module")
def able() -> Iterator[Live]:
    with running(model="brief", chat=AnyChat(), max_model_len=512) as live:
        yield live


@pytest.mark.parametrize("name", VENDORS)
def test_every_example_is_answered_or_refused_as_documented(able: Live, name: str) -> None:
    headers = {"anthropic-version": "2023-06-01"} if name == "anthropic" else {}

    def wrong(example: Example) -> list[str]:
        response = able.post(example.path, example.body, headers=headers)
        text = response.text
        if example.refused is None:
            right = response.status_code == 200 and '"error": {' not in text
        else:
            right = 400 <= response.status_code < 500 and example.refused in text
        return [] if right else [f"{example.name}: {response.status_code} {text[:300]}"]

    with ThreadPoolExecutor(32) as pool:  # a step of the engine has tokens of many answers
        found = [*chain(*pool.map(wrong, [*documents(VENDORS[name]), *types(VENDORS[name])]))]
    assert not found, "\n".join(found)


ROOT = HERE.parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ADDRESS, BODY = re.compile(r"(/v1/[\w/]+)"), re.compile(r"-d [\\\s]*'({.*?})'")
OTHER_SERVERS = {"/v1/load_lora_adapter": 400, "/v1/unload_lora_adapter": 400, "/v1/models/load": 404}
"""Endpoints that need a server with other flags, and what this one says."""
WRONG = '"mesages"'
"""The field of the one request that docs/trouble.md sends to be refused."""


def test_requests_of_our_documents_are_answered(able: Live) -> None:
    """`test_curls.py` sends those of docs/api.md as the shell does. These are the bodies of all other pages."""
    first = able.post("/v1/responses", {"input": "My name is Ada.", "max_output_tokens": 2}).json()["id"]
    found, wrong = 0, []
    for page in PAGES:
        text = page.read_text().replace("'$FIRST'", first) if page.name != "api.md" else ""
        indented = "\n".join(line for line in text.splitlines() if line.startswith("    "))
        for command in indented.split("curl ")[1:]:
            address, written = ADDRESS.search(command), BODY.search(command)
            if address is None or written is None:
                continue
            path, content = address[1], written[1]
            body = {name: value for name, value in json.loads(content).items() if name != "model" or "models" in path}
            response = able.post(path, body)
            found += 1
            expected = 400 if WRONG in content else OTHER_SERVERS.get(path, 200)
            if response.status_code != expected:
                wrong.append(f"{page.name}: {path} {content}: {response.status_code} {response.text[:200]}")
    assert not wrong, "\n".join(wrong)
    assert found >= 10


@pytest.mark.parametrize("name", VENDORS)
def test_the_page_has_the_numbers(name: str) -> None:
    """A row for each vendor: packages, examples, values of fields, and how many of them are refused."""
    vendor = VENDORS[name]
    every = [*documents(vendor), *types(vendor)]
    refused = sum(example.refused is not None for example in every)
    cells = f"| {vendor['packages']} | {len(documents(vendor))} | {len([*types(vendor)])} | {refused} |"
    assert cells in PAGE, cells
