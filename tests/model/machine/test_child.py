"""A child process finds Noria's packages and its sockets, and inherits nothing else."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import model
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


def run_python(code: str) -> None:
    root = Path(model.__path__[0]).parent
    subprocess.run([sys.executable, "-P", "-c", code], check=True, env={**os.environ, "PYTHONPATH": str(root)})


def test_pytorch_leaves_out_the_registration_of_metas_until_it_is_read() -> None:
    run_python("""
import sys
from model.machine.child import METAS, defer_metas
defer_metas()
import torch
assert "torch._prims" not in sys.modules, "what only metas import is imported"
assert (torch.ones(2, 3) @ torch.ones(3, 2)).tolist() == [[3, 3], [3, 3]]
assert torch.empty(2, 3, device="meta").shape == (2, 3)
from torch._meta_registrations import meta_index_Tensor
assert meta_index_Tensor.__module__ == METAS
assert sys.modules[METAS].__file__ and torch._meta_registrations is sys.modules[METAS]
""")


def test_pytorch_compiles_although_metas_were_left_out() -> None:
    """Its modules need each other in a circle, which they then enter elsewhere."""
    run_python("""
from model.machine.child import defer_metas
defer_metas()
import torch
assert torch.compile(lambda x: x + x, backend="aot_eager")(torch.ones(2)).tolist() == [2, 2]
""")


def test_several_threads_may_read_the_metas_first() -> None:
    run_python("""
from concurrent.futures import ThreadPoolExecutor
from model.machine.child import defer_metas
defer_metas()
import torch
metas = torch._meta_registrations
with ThreadPoolExecutor(8) as threads:
    assert len(set(threads.map(lambda _: metas.meta_index_Tensor, range(8)))) == 1
""")
