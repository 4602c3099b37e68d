"""The process of grammars as its parent sees it: how each end is told from the others, and what is left afterwards."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from model.grammar.client import GrammarProcess
from model.machine.helper import CannotStart, First, ProcessLost
from tests.faults import FAULTS, descriptors, failing, offspring
from tests.model.grammar.vocabulary import BAD, ENDLESS, FIRST, GOOD, LARGE
from tests.waiting import ended, eventually, strike


@pytest.fixture
def process() -> Iterator[GrammarProcess]:
    started = GrammarProcess(FIRST)
    yield started
    started.end()


def lost(process: GrammarProcess, grammar: str = GOOD) -> ProcessLost:
    with pytest.raises(ProcessLost) as caught:
        process.ask(grammar)
    assert process.ended
    return caught.value


def test_the_compilers_word_is_an_answer(process: GrammarProcess) -> None:
    assert process.ask(GOOD) == ""
    assert "nonsense" in process.ask(BAD)
    assert not process.ended


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1])
def test_a_process_that_is_killed_accuses_no_grammar(process: GrammarProcess, number: signal.Signals) -> None:
    strike(process.pid, number)
    error = lost(process)
    assert number.name in str(error)
    assert not error.by_limits


def test_an_idle_process_that_is_killed_leaves_no_zombie(process: GrammarProcess) -> None:
    os.kill(process.pid, signal.SIGKILL)
    eventually(lambda: not Path(f"/proc/{process.pid}").exists(), "its exit code is read")


def test_a_stopped_process_is_not_waited_for(process: GrammarProcess) -> None:
    """The reason says that its state was seen. A wait for its answer would end with another one."""
    strike(process.pid, signal.SIGSTOP)
    error = lost(process)
    assert str(error) == "a signal has stopped it"
    assert not error.by_limits
    assert ended(process.pid)


@pytest.mark.parametrize("grammar", [ENDLESS, LARGE])
def test_its_own_limits_are_told_apart(process: GrammarProcess, grammar: str) -> None:
    assert lost(process, grammar).by_limits


def test_sequences_are_not_blamed_for_a_grammar_that_is_compiled_meanwhile() -> None:
    process = GrammarProcess(FIRST, follows=True)
    assert not lost(process, ENDLESS).by_limits


def test_what_it_says_before_it_ends_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "noria.helper"), pytest.raises(CannotStart):
        GrammarProcess(First({"vocabulary": "[1]"}))
    assert "exit code 1; it said: ValueError: not enough values" in caplog.text


def test_without_a_thread_it_cannot_start_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    before, children = descriptors(), offspring()
    monkeypatch.setattr("_thread.start_new_thread", refuse)
    with pytest.raises(CannotStart):
        GrammarProcess(FIRST)
    assert (descriptors(), offspring()) == (before, children)


def test_without_processes_or_descriptors_it_cannot_start() -> None:
    for kind, code in FAULTS[:5]:
        with failing(kind, code, lasting=True), pytest.raises(CannotStart, match="cannot be started"):
            GrammarProcess(FIRST)


PARENT = """
import resource, sys, time
from model.grammar.client import *
from model.machine.helper import *
from tests.model.grammar.vocabulary import *
"""


def parent(code: str) -> subprocess.Popen[str]:
    """A Python process that starts grammar processes."""
    return subprocess.Popen([sys.executable, "-c", PARENT + code], stdout=subprocess.PIPE, text=True)


def test_a_limit_of_the_system_below_its_own_hinders_no_grammar() -> None:
    """Two GiB are less than what the follower allows itself."""
    code = """
resource.setrlimit(resource.RLIMIT_AS, (2**31, 2**31))
follower = GrammarProcess(FIRST, follows=True)
print(repr(follower.ask(GOOD)))
follower.end()
"""
    output, _ = parent(code).communicate()
    assert output == "''\n"


def test_memory_that_the_system_does_not_give_accuses_no_grammar() -> None:
    """The system gives 16 MiB beside what the process has once it is ready, its own limit is 64 MiB."""
    code = """
probe = GrammarProcess(FIRST)
limit = int(open(f"/proc/{probe.pid}/statm").read().split()[0]) * resource.getpagesize() + 2**24
probe.end()
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    print(GrammarProcess(FIRST).ask(LARGE))
except ProcessLost as lost:
    print(type(lost).__name__, lost.by_limits)
"""
    output, _ = parent(code).communicate()
    assert output == "ProcessLost False\n"


@pytest.mark.parametrize("stopped", [False, True])
def test_it_dies_with_its_parent(*, stopped: bool) -> None:
    with parent("child = GrammarProcess(FIRST)\nprint(child.pid, flush=True)\ntime.sleep(60)") as started:
        assert started.stdout is not None
        pid = int(started.stdout.readline())
        if stopped:
            strike(pid, signal.SIGSTOP)
        started.kill()
        started.wait()
        eventually(lambda: ended(pid), "the child has died with its parent")


def test_a_child_whose_parent_died_before_it_looked_ends() -> None:
    """The variable names a process that is not the parent."""
    code = "from model.machine.child import die_with_parent; die_with_parent(); print('alive')"
    for pid, said in ((os.getpid(), "alive\n"), (2**22, "")):
        environment = {**os.environ, "NORIA_PARENT_PID": str(pid)}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
        )
        assert done.stdout == said
