"""The tape: what an engine wrote can be read after its SIGKILL, with the stacks of its threads."""

import os
import signal
import subprocess
import sys

from service.engine.tape import BYTES, FIELDS, N_STEPS, STACK_SIGNAL, SharedTape, Tape
from tests.waiting import eventually


def test_the_latest_steps_are_read_in_order() -> None:
    shared = SharedTape()
    tape = Tape(shared.path)
    for number in range(N_STEPS + 3):
        step = tape.begin(number, 2, 1, 0.5)
        if number < N_STEPS + 2:
            tape.end(step, 0.25, 0.125, 0.0625)
    steps = [dict(zip(FIELDS, step, strict=True)) for step in shared.steps()]
    assert [step["tokens"] for step in steps] == [*range(3, N_STEPS + 3)]
    assert {step["pid"] for step in steps} == {os.getpid()}
    parts = ("plan", "launch", "wait", "commit")
    assert [steps[-2][part] for part in parts] == [0.5, 0.25, 0.125, 0.0625]
    assert [steps[-1][part] for part in parts] == [0.5, None, None, None], "it has not landed"


def test_a_killed_engine_leaves_its_steps_and_stacks() -> None:
    shared = SharedTape()
    code = f"from service.engine.tape import Tape; tape = Tape({shared.path!r}); tape.begin(5, 3, 2, 0.5); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as engine:
        eventually(lambda: bool(shared.steps()), "a step is begun")
        engine.send_signal(STACK_SIGNAL)
        stacks: list[str] = []
        eventually(lambda: bool(stacks or stacks.extend(filter(None, [shared.take_stacks()]))), "it tells its stacks")
        engine.kill()
        assert engine.wait() == -signal.SIGKILL
    (step,) = shared.steps()
    assert step[1:6] == [engine.pid, 1, 5, 3, 2]
    assert "<module>" in stacks[0]
    assert shared.take_stacks() == ""


def test_without_the_services_memory_an_engine_has_its_own() -> None:
    assert Tape(f"/proc/{os.getpid()}/fd/9999").begin(1, 0, 1, 0.0) == 1
    assert BYTES < 2**18
