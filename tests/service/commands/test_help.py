"""`--help`, and what shells complete."""

import pytest
from typer.testing import CliRunner

from service import cli
from tests.service import command_line

COLOUR = "\x1b["
COMMANDS = [
    "serve",
    "plan",
    "chat",
    "ps",
    "batch",
    "bench",
    "pull",
    "list",
    "explain",
    "rm",
    "prefixes",
    "verify",
    "receipts",
]


def noria(*arguments: str, **variables: str) -> str:
    """What the command prints into a pipe."""
    env = {"COLUMNS": None, "NO_COLOR": None, "FORCE_COLOR": None} | variables
    return CliRunner().invoke(cli.build(list(arguments)), arguments, env=env, prog_name="noria").output


def test_help_has_no_colour_in_a_pipe_and_names_every_command() -> None:
    text = noria("-h")
    assert COLOUR not in text + noria("serve", "--help")
    assert "serve Serve MODEL over HTTP" in " ".join(text.split())
    assert "--install-completion" in text


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("noria ", COMMANDS),
        ("noria serve --max-s", ["--max-sequences", "--max-step-tokens"]),
        ("noria serve --quantize int", ["int8", "int4"]),
        ("noria plan --device ", ["auto", "cpu", "cuda"]),
        ("noria chat --te", ["--temperature"]),
    ],
)
def test_shells_complete_commands_flags_and_choices(line: str, expected: list[str]) -> None:
    """By the protocol of the script that `--show-completion` prints for bash; Typer knows those of other shells."""
    words = line.split(" ")
    bash = noria(_NORIA_COMPLETE="complete_bash", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1))
    assert bash.split() == expected


def test_the_usage_names_the_arguments_as_the_texts_do() -> None:
    assert "noria serve [OPTIONS] [MODEL]" in noria("serve", "--help")
    assert "noria batch [OPTIONS] {INPUT} {OUTPUT}" in noria("batch", "--help")


@pytest.mark.parametrize("arguments", [(), ("--help",), ("--golden", "golden.jsonl", "--record", "requests.jsonl")])
def test_a_command_that_is_gone_says_what_does_its_work(arguments: tuple[str, ...]) -> None:
    done = command_line.noria("check", *arguments)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert 'noria batch REQUESTS GOLDEN records answers, if each body has "receipt": "full"' in done.stderr
    assert "noria verify GOLDEN --answers-only" in done.stderr
    assert "check" not in noria("--help")
