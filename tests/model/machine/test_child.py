"""A child process finds Noria's packages and its sockets, and inherits nothing else."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

import model
from model.machine import child
from model.machine.child import python_command, start_python

MODULE = "tests.model.machine.echo"
ENVIRONMENT = {"ADDED": "yes", "REMOVED": None}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's folder, in which other things have our names."""
    for name in ("model", "service", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "theirs"))
    monkeypatch.setenv("REMOVED", "no")


def received(ours: socket.socket) -> dict[str, Any]:
    with ours, ours.makefile("rb") as stream:
        answer: dict[str, Any] = json.loads(stream.read())
    return answer


def check(answer: dict[str, Any]) -> None:
    assert answer["arguments"] == ["a", "b c"]
    assert answer["session"], "Ctrl-C in the parent's terminal would reach it"
    assert answer["model"] == model.__path__[0]
    assert answer["stdin"] == ""
    assert answer["environment"]["PYTHONPATH"].endswith("theirs")
    assert answer["environment"]["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID", "nvidia-smi numbers GPUs so"
    assert answer["environment"]["ADDED"] == "yes"
    assert "REMOVED" not in answer["environment"]


def test_a_child_for_a_thread() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        process = start_python(MODULE, "a", "b c", sockets=[theirs], environment=ENVIRONMENT)
    check(received(ours))
    assert process.wait() == 0


def test_a_child_for_an_event_loop() -> None:
    async def run(theirs: socket.socket) -> int:
        command, options = python_command(MODULE, "a", "b c", sockets=[theirs], environment=ENVIRONMENT)
        with theirs:
            process = await asyncio.create_subprocess_exec(*command, **options)
        return await process.wait()

    ours, theirs = socket.socketpair()
    assert asyncio.run(run(theirs)) == 0
    check(received(ours))


def test_a_title_is_left_out_where_the_system_does_not_say_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """QEMU's /proc ends before these fields."""
    monkeypatch.setattr(child, "_stat", lambda pid: ["S"] * 45)
    child.title_process("noria-engine", "small")
