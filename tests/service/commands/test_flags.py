"""A flag is declared once: help, variable, limits, the runner's options, `plan` and the document follow."""

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner

from model.options import RunnerOptions, flag_name, flags
from service import cli
from service.commands.flags import DOCUMENT, document, parse_size, variable
from service.settings import Settings

ROOT = Path(__file__).parents[3]
DECLARE = """
import json, sys, types
from pathlib import Path

def declare(name, line):
    # The module with one more line at the end of its options.
    source = Path(*name.split(".")).with_suffix(".py").read_text()
    before, after = source.split("    def ", 1) if name == "service.settings" else source.rsplit("    def ", 1)
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(f"{before}    {line}\\n\\n    def {after}", name, "exec"), module.__dict__)

declare("model.options", "wheel_speed: int = option(3, 'Speed of the wheel.', least=1, most=9, in_plan=True)")
declare("service.settings", "wheel_memory: int = option(2**20, 'Memory of the wheel.', name='wheel', is_size=True)")

from typer.testing import CliRunner
from service import cli
from service.commands.flags import table
from service.generation.startup import runner_options
from service.settings import Settings

def invoke(*arguments, **env):
    return CliRunner().invoke(cli.build(["plan"]), arguments, env=env)

found = []
cli.run = lambda settings, engine: found.append(settings) or 0
invoke("serve", "--wheel-speed", "5", "--wheel", "2KiB")
invoke("serve", NORIA_WHEEL_SPEED="7", NORIA_WHEEL="1GiB")
print(json.dumps({
    "serve": invoke("serve", "--help").output,
    "plan": invoke("plan", "--help").output,
    "table": table(Settings),
    "values": [(settings.wheel_speed, settings.wheel_memory) for settings in found],
    "runner": runner_options(found[0], Path("somewhere")),
    "refused": invoke("serve", "--wheel-speed", "10").exit_code,
}))
"""


def test_one_line_is_all_that_a_new_flag_needs() -> None:
    done = subprocess.run([sys.executable, "-c", DECLARE], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["values"] == [[5, 2048], [7, 2**30]]
    assert seen["runner"]["wheel_speed"] == 5
    assert "wheel_memory" not in seen["runner"]
    assert seen["refused"] == 2
    words = " ".join(seen["serve"].split())
    assert "--wheel-speed <int range> Speed of the wheel. [env var: NORIA_WHEEL_SPEED; default: 3; 1<=x<=9]" in words
    assert "--wheel SIZE Memory of the wheel. [env var: NORIA_WHEEL; default: 1MiB]" in words
    assert "--wheel-speed" in seen["plan"]
    assert "--wheel " not in seen["plan"]
    row = "| `--wheel-speed` | `NORIA_WHEEL_SPEED` | Speed of the wheel. At least 1 and at most 9. | `3` | yes |"
    assert row in seen["table"].splitlines()
    assert "| `--wheel` | `NORIA_WHEEL` | Memory of the wheel. | `1MiB` |  |" in seen["table"].splitlines()


def test_every_option_is_a_flag_and_the_runner_takes_its_own() -> None:
    """Adapters are those of --lora, numbered."""
    found = [field.name for field, _ in flags(Settings)]
    assert found == [field.name for field in fields(Settings) if field.name != "adapters"]
    assert {field.name for field in fields(RunnerOptions)} <= {field.name for field in fields(Settings)}


@pytest.mark.parametrize("command", ["serve", "plan"])
def test_help_is_complete_and_fits_80_columns(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = CliRunner().invoke(cli.build([command]), [command, "--help"]).output
    assert all(len(line) <= 80 for line in text.splitlines())
    words = " ".join(text.split())
    for field, flag in flags(Settings):
        in_help = command == "serve" or flag.in_plan
        assert (re.search(rf"env\s+var: {variable(field)}[;\]]", words) is not None) == in_help, field.name
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
