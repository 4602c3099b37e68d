"""The law: no fault of the server is ever a 4xx. Faults of the process that tries grammars, each before a new form."""

import os
import signal
import subprocess
from itertools import count
from typing import Any

import httpx
import pytest

from model.machine import helper
from service.structured import constraint
from tests.faults import FAULTS, descriptors, every_fault, failing, helpers, offspring
from tests.service.live import Live, refused
from tests.waiting import ended, eventually, strike

PROCESS = "model.grammar.process"
NUMBERS = count()
SIGNALS = [signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGPROF]


def ask(live: Live, form: str | None = None) -> httpx.Response:
    """The answer to a request with a form, which is new if none is given."""
    choice = form or f"choice {next(NUMBERS)}"
    return live.post("/v1/completions", {"prompt": "x", "max_tokens": 3, "guided_choice": [choice]})


def served(live: Live, form: str | None = None) -> None:
    response = ask(live, form)
    assert response.status_code == 200, response.text


def unavailable(live: Live, form: str | None = None) -> None:
    response = ask(live, form)
    assert response.status_code == 503, response.text
    assert response.json()["error"]["code"] == "grammar_unavailable"
    assert int(response.headers["retry-after"]) > 0


def process() -> int:
    """The process that tries grammars."""
    (pid,) = helpers(PROCESS)
    return pid


def without_process() -> None:
    """Kill it."""
    pid = process()
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: waitable(pid), "it is dead, with all its threads")


def waitable(pid: int) -> bool:
    """Whether a child has ended, its exit code read or not."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


@pytest.fixture(autouse=True)
def warm(live: Live) -> None:
    served(live)


class Starts:
    """What happens to processes that start: the first `n` get a signal at once."""

    def __init__(self, number: signal.Signals, n: int) -> None:
        self._number = number
        self._left = n
        self._start = helper.start_python

    def __call__(self, *arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started = self._start(*arguments, **options)
        if self._left:
            self._left -= 1
            started.send_signal(self._number)
        return started


@pytest.mark.parametrize("number", SIGNALS)
def test_an_idle_process_that_is_lost_costs_nobody_a_form(live: Live, number: signal.Signals) -> None:
    before = live.metric("noria_grammar_restarts_total", process="trial")
    old = process()
    strike(old, number)
    for _ in range(2):
        served(live)
    assert ended(old)
    assert live.metric("noria_grammar_restarts_total", process="trial") == before + 1


@pytest.mark.parametrize("number", SIGNALS)
def test_a_process_lost_while_it_starts_costs_a_retry(
    live: Live, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(helper, "start_python", Starts(number, 1))
    without_process()
    served(live)


def test_a_process_whose_exit_code_is_not_read_yet_has_ended(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that reads it has its turn late: no attempt may be lost by that."""
    unread, poll = [None], subprocess.Popen.poll
    monkeypatch.setattr(subprocess.Popen, "poll", lambda process: unread.pop() if unread else poll(process))
    monkeypatch.setattr(helper, "start_python", Starts(signal.SIGKILL, 1))
    without_process()
    served(live)
    assert not unread


@pytest.mark.parametrize("number", SIGNALS)
def test_processes_that_are_always_lost_are_a_503_and_nothing_is_remembered(
    live: Live, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(helper, "start_python", Starts(number, 2))
        without_process()
        unavailable(live, f"lost by {number.name}")
    served(live, f"lost by {number.name}")
    served(live)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_process_lost_with_a_form_is_tried_again(
    live: Live, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal arrives between the request for a trial and its answer."""
    left, send = [number], helper.Link.send

    def hit(link: helper.Link, value: Any, *arguments: Any) -> None:
        if left and isinstance(value, str):
            os.kill(process(), left.pop())
        send(link, value, *arguments)

    monkeypatch.setattr(helper.Link, "send", hit)
    served(live)
    assert not left


@pytest.mark.parametrize(("kind", "code"), dict(FAULTS).items())
def test_every_fault_ends_in_a_served_request_or_a_503(live: Live, kind: str, code: int) -> None:
    before, children = descriptors(), len(offspring())
    for fault in every_fault(kind, code):
        form = f"{fault!r} {next(NUMBERS)}"
        without_process()
        response = ask(live, form)
        assert response.status_code == 200 or (fault.happened and response.status_code == 503), fault
        served(live, form)
    served(live)
    assert len(offspring()) == children
    # A leak would be one for each fault. There may be one less: an idle connection of an earlier test may close.
    assert descriptors() <= before


@pytest.mark.parametrize(("kind", "code"), dict(FAULTS[:5]).items())
def test_as_long_as_nothing_can_start_every_form_is_a_503(live: Live, kind: str, code: int) -> None:
    without_process()
    with failing(kind, code, lasting=True):
        for _ in range(3):
            unavailable(live, f"{kind} {code}")
    served(live, f"{kind} {code}")


CHAIN = "\n".join(f"r{n}: r{n + 1} | r{n + 2}" for n in range(6000))
DEEP = f'start: r0\n{CHAIN}\nr6000: "c"\nr6001: "d"'
"""Rules too deep for the stack."""


def test_a_form_that_breaks_two_processes_is_refused_and_is_no_word_of_the_compiler(
    live: Live, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another form is not held up by it, and the same form is tried in a fresh process again."""
    body, started = {"prompt": "x", "max_tokens": 3, "guided_grammar": DEEP}, []
    start = helper.start_python

    def counted(*arguments: Any, **options: Any) -> subprocess.Popen[bytes]:
        started.append(arguments)
        return start(*arguments, **options)

    monkeypatch.setattr(helper, "start_python", counted)
    for n_started in (1, 2):
        assert "2 s, 64 MiB" in refused(live, "/v1/completions", body)["message"]
        assert len(started) == n_started
    served(live)
    assert len(started) == 3, "the process that the form broke is replaced"


def test_a_form_that_takes_long_is_tried_apart(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that all share gives it up, so that no other form waits behind it."""
    served(live)
    monkeypatch.setattr(constraint, "TRY_SECONDS", 0.001)
    without_process()
    names = {f"name{n}": {"type": "string", "pattern": f"^{n}[a-z]+$"} for n in range(300)}
    body = {"prompt": "x", "max_tokens": 3, "guided_json": {"type": "object", "properties": names}}
    response = live.post("/v1/completions", body)
    assert response.status_code == 200, response.text
    assert helpers(PROCESS) == [], "the shared process has ended, that of the form too"
