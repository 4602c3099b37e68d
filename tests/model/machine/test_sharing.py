"""Two processes that load on one fake GPU, whose memory is a number in a file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from model.errors import OptionError
from model.machine import sharing
from model.machine.sharing import alone_on

TAKE = """
import sys, time
from pathlib import Path
from model.machine.sharing import alone_on

memory = Path(sys.argv[1])
with alone_on(sys.argv[2:], lambda pid: print("waits for", pid, flush=True)) as others:
    used = int(memory.read_text())
    print("beside", *others, flush=True)
    if sys.stdin.readline():  # it loads until it is told to go on
        memory.write_text(str(used + (100 - used) // 2))
print("done", flush=True)
sys.stdin.readline()
"""


class Engine:
    """A process that takes half of what is free."""

    def __init__(self, memory: Path, *gpus: str) -> None:
        command = [sys.executable, "-c", TAKE, str(memory), *gpus]
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(memory.parent)}
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)

    @property
    def pid(self) -> int:
        return self.process.pid

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def go_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    (tmp_path / "memory").write_text("0")
    return tmp_path / "memory"


def test_the_second_waits_and_sees_what_the_first_takes(memory: Path) -> None:
    first = Engine(memory, "b", "a")
    assert first.says() == "beside"
    second = Engine(memory, "a", "b")
    assert second.says() == f"waits for {first.pid}"
    first.go_on()
    assert first.says() == "done"
    assert second.says() == f"beside {first.pid} {first.pid}"
    second.go_on()
    assert second.says() == "done"
    assert memory.read_text() == "75", "each takes half of what is really free"
    for engine in (first, second):
        engine.end()


def test_a_killed_engine_gives_way_to_the_next(memory: Path) -> None:
    """As where a spare takes the place of an engine that ended while it loaded."""
    first = Engine(memory, "a")
    assert first.says() == "beside"
    first.end()
    with alone_on(["a"], lambda pid: pytest.fail(f"process {pid} is dead")) as others:
        assert others == []


def test_other_gpus_do_not_wait(memory: Path) -> None:
    with alone_on(["a"], pytest.fail), alone_on(["b"], pytest.fail) as others:
        assert others == []


def test_patience_ends(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharing, "PATIENCE_SECONDS", 0.0)
    told: list[int] = []
    first = Engine(memory, "a")
    assert first.says() == "beside"
    with pytest.raises(OptionError, match=f"process {first.pid} has been loading a model on the same GPU for 0 s"):
        alone_on(["a"], told.append).__enter__()
    first.end()


def test_a_folder_that_cannot_be_written_stops_nobody(
    memory: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(memory))  # a file
    with alone_on(["a"], pytest.fail) as others:
        assert others == []
    assert "do not wait for each other here" in caplog.text
