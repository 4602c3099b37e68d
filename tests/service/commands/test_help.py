"""`--help` in panels, and what shells complete."""

import re

import pytest
from typer.testing import CliRunner

from model.options import grouped_flags
from service import cli
from service.settings import Settings

COLOUR = "\x1b["


def noria(*arguments: str, **variables: str) -> str:
    """What the command prints into a pipe."""
    env = {"COLUMNS": None, "NO_COLOR": None, "FORCE_COLOR": None} | variables
    return CliRunner().invoke(cli.build(list(arguments)), arguments, env=env, prog_name="noria").output


def panels(text: str) -> dict[str, str]:
    """The text of each box, by its title."""
    boxes = re.findall(r"╭─ (.+?) ─+╮\n(.*?)╰", text, re.DOTALL)
    return {title: " ".join(body.replace("│", " ").split()) for title, body in boxes}


def test_every_flag_stands_in_the_panel_of_its_group() -> None:
    shown = panels(noria("serve", "--help"))
    groups = {group for group, _, _ in grouped_flags(Settings)}
    assert groups | {"Options"} == shown.keys()
    for group, field, flag in grouped_flags(Settings):
        assert group, field.name
        assert flag.is_argument or re.search(rf"--{(flag.name or field.name).replace('_', '-')} ", shown[group])


def test_the_commands_have_panels() -> None:
    shown = panels(noria("-h"))
    assert "serve Serve MODEL over HTTP" in shown["Serve"]
    assert "chat Talk to a model in the terminal." in shown["Use a server"]
    assert "--install-completion" in shown["Options"]


@pytest.mark.parametrize("columns", [50, 80])
def test_help_has_the_width_of_the_terminal_and_no_colour_in_a_pipe(columns: int) -> None:
    for command in ((), ("serve",), ("plan",), ("chat",), ("bench",)):
        text = noria(*command, "--help", COLUMNS=str(columns))
        assert {len(line) for line in text.splitlines() if line[0:1] in "╭│╰" and line} == {columns}
        assert COLOUR not in text


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("noria ", ["serve", "plan", "chat", "batch", "bench", "pull", "list", "rm"]),
        ("noria serve --max-s", ["--max-sequences", "--max-step-tokens"]),
        ("noria serve --quantize int", ["int8", "int4"]),
        ("noria plan --device ", ["auto", "cpu", "cuda"]),
        ("noria chat --te", ["--temperature"]),
    ],
)
def test_shells_complete_commands_flags_and_choices(line: str, expected: list[str]) -> None:
    """By the protocols of the scripts that `--show-completion` prints."""
    words = line.split(" ")
    bash = noria(_NORIA_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    assert bash.split() == expected
    variables = {"_TYPER_COMPLETE_ARGS": line, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    fish = noria(_NORIA_COMPLETE="complete_fish", **variables)
    assert re.findall(rf"^({'|'.join(map(re.escape, expected))})(?:\t|$)", fish, re.MULTILINE) == expected
    zsh = noria(_NORIA_COMPLETE="complete_zsh", _TYPER_COMPLETE_ARGS=line)
    assert all(f'"{value}"' in zsh for value in expected)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell_calls_noria(shell: str) -> None:
    script = noria(_NORIA_COMPLETE=f"source_{shell}")
    assert f"_NORIA_COMPLETE=complete_{shell}" in script


@pytest.mark.parametrize("command", ["serve", "chat", "batch", "plan"])
def test_nothing_is_wider_than_the_terminal(command: str) -> None:
    assert max(map(len, noria(command, "--help", COLUMNS="40").splitlines())) <= 40


def test_the_usage_names_the_arguments_as_the_texts_do() -> None:
    assert "noria serve [OPTIONS] [MODEL]" in noria("serve", "--help")
    assert "noria batch [OPTIONS] {INPUT} {OUTPUT}" in noria("batch", "--help")
