"""A flag is declared once: help, variable, limits, the runner's options, `plan` and the document follow."""

import re
from dataclasses import fields

import pytest
from typer.testing import CliRunner

from model.options import RunnerOptions, flag_name, flags
from service import cli
from service.commands.flags import DOCUMENT, document, parse_size, variable
from service.settings import Settings


def test_every_option_is_a_flag_and_the_runner_takes_its_own() -> None:
    """Adapters are those of --lora, numbered, and the template is the text of --chat-template."""
    found = [field.name for field, _ in flags(Settings)]
    assert found == [field.name for field in fields(Settings) if field.name not in ("adapters", "template")]
    assert {field.name for field in fields(RunnerOptions)} <= {field.name for field in fields(Settings)}


@pytest.mark.parametrize("command", ["serve", "plan"])
def test_help_is_complete_and_fits_80_columns(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = CliRunner().invoke(cli.build([command]), [command, "--help"]).output
    assert all(len(line) <= 80 for line in text.splitlines())
    words = " ".join(text.split())
    for field, flag in flags(Settings):
        in_help = command == "serve" or flag.in_plan
        named = re.search(rf"env\s+var: {variable(field)}[;\]]", words) is not None
        assert named == (in_help and not flag.is_typed), field.name
        if in_help:
            assert flag.is_argument or re.search(rf"{flag_name(field)}[ ]", words), field.name
            assert "…" not in words


def test_the_document_holds_what_is_declared() -> None:
    text = DOCUMENT.read_text()
    assert text == document(text, Settings), "run python -m service.commands.flags"


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 2**32), ("512MiB", 2**29), ("1k", 1024), ("1.5G", 3 * 2**29), ("123", 123), ("2 MB", 2**21)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
