"""The memory of processes on /metrics: a child that takes a known amount."""

import subprocess
import sys

from service.observe.machine import SystemCollector
from service.observe.processes import KINDS

MIB = 2**20
CHILD = """
import sys
from model.machine.child import name_process
name_process("noria-engine")
taken = bytearray(b"x") * (96 * 2**20)
print("ready", flush=True)
sys.stdin.read()
"""


def found() -> dict[tuple[str, str], float]:
    family, *_ = SystemCollector().collect()
    return {(sample.labels["process"], sample.labels["kind"]): sample.value for sample in family.samples}


def test_each_kind_of_process_has_its_memory() -> None:
    before = found()
    assert {kind for process, kind in before if process == "service"} == KINDS.keys()
    assert before["service", "anonymous"] > 10 * MIB
    engines = before.get(("engine", "anonymous"), 0.0)  # of another test, perhaps
    with subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        assert 96 * MIB < found()["engine", "anonymous"] - engines < 160 * MIB
        assert found()["engine", "swapped"] < 96 * MIB
    assert found().get(("engine", "anonymous"), 0.0) <= engines
