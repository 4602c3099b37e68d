"""docs/clients.md names each client that `make test-agents` runs, with the version that runs there."""

import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "clients.md").read_text()
FOLDERS = sorted(path.parent for path in (ROOT / "tests" / "agents").glob("*/requirements.txt"))


def pinned(folder: Path) -> set[str]:
    """The versions that a folder's lists pin."""
    lines = (folder / "requirements.txt").read_text().splitlines()
    versions = {line.partition("==")[2] for line in lines if "==" in line}
    file = folder / "package.json"
    return versions | {*(json.loads(file.read_text())["dependencies"].values() if file.is_file() else ())}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_client_is_on_the_page_with_its_version(folder: Path) -> None:
    words = folder.name.split("_")[0]
    rows = [row for row in PAGE.splitlines() if row.startswith("|") and re.search(words, row.split("|")[1], re.I)]
    assert any(row.split("|")[2].strip() in pinned(folder) for row in rows), pinned(folder)
