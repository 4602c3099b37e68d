"""docs/trouble.md: 15 symptoms of one form, whose codes, flags and links exist; then the table of `noria explain`."""

import re
from pathlib import Path

import pytest

from scripts import trouble

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/trouble.md").read_text(encoding="utf-8")
SYMPTOMS = dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n?)*)", PAGE.partition("## What `noria")[0], re.MULTILINE))
FORM = re.compile(r"\n {4}(\S.*)\n\n\*\*It prints\*\* (.+?)\n\n\*\*Remedy\.\*\* (.+?)\n*", re.DOTALL)
PRODUCT = "".join(
    path.read_text(encoding="utf-8") for room in ("model", "service") for path in (ROOT / room).rglob("*.py")
)
FLAGS = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")


def anchor(title: str) -> str:
    """The name that GitHub gives a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def test_there_are_fifteen() -> None:
    assert len(SYMPTOMS) == 15


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_a_symptom_has_one_command_what_it_prints_and_a_remedy(symptom: str) -> None:
    found = FORM.fullmatch(SYMPTOMS[symptom])
    assert found, SYMPTOMS[symptom]
    command, printed, remedy = found.groups()
    assert command.startswith(("curl -s", "noria ", ".venv/bin/python -m model."))
    assert "\n    " not in printed + remedy, "another command"
    for code in re.findall(r"`([a-z]+_[a-z_]+)`", printed):
        assert code in PRODUCT or code in FLAGS
    for flag in re.findall(r"--[a-z-]+", command + remedy):
        assert f"`{flag}`" in FLAGS, flag


def test_errors_link_to_symptoms() -> None:
    links = re.findall(r"docs/trouble\.md#([\w-]+)", PRODUCT)
    assert len(links) >= 2
    assert set(links) <= {anchor(title) for title in SYMPTOMS}


def test_the_table_is_what_the_server_says() -> None:
    assert trouble.page(PAGE) == PAGE, "run python scripts/trouble.py"
