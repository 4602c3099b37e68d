"""`make test-agents` stops before its tests with what failed: an install, or the network namespace."""

import os
from pathlib import Path

import pytest

from tests.agents import run
from tests.clients.run import MISSING


class Started(Exception):
    """The program has replaced itself."""


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a network, on which `main` would start itself again."""

    def execvp(*program: object) -> None:
        raise Started

    monkeypatch.setattr(run, "is_alone", lambda: False)
    monkeypatch.setattr(run, "ALONE", ("true",))
    monkeypatch.setattr("sys.argv", ["run", "codex"])
    monkeypatch.setattr(os, "execvp", execvp)


@pytest.mark.parametrize("failures", [["no index", ""], [""], [MISSING]])
def test_it_goes_on_with_what_is_installed(monkeypatch: pytest.MonkeyPatch, failures: list[str]) -> None:
    monkeypatch.setattr(run, "prepared", lambda name, here: (Path(), failures.pop(0)))
    with pytest.raises(Started):
        run.main()
    assert not failures


def test_it_stops_with_an_install_that_fails_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failures = ["exit code 2", "exit code 1"]
    monkeypatch.setattr(run, "prepared", lambda name, here: (Path(), failures.pop(0)))
    assert run.main() == 1
    assert capsys.readouterr().out == "codex: exit code 1\n"


@pytest.mark.parametrize("program", ["false", "no-such-program"])
def test_it_stops_without_a_namespace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], program: str
) -> None:
    monkeypatch.setattr(run, "ALONE", (program,))
    monkeypatch.setattr(run, "prepared", lambda name, here: pytest.fail("it installs"))
    assert run.main() == 1
    assert capsys.readouterr().out.count("\n") == 1
