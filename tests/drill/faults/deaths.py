"""Processes that die, hang or crash: each kind of process, each signal, at rest and under load."""

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.drill.canary import QUESTIONS, ask
from tests.drill.explained import NOTHING
from tests.drill.forms import ask_new_form, new_form, serves_new_form
from tests.drill.processes import send, tree
from tests.drill.row import SERVES_SECONDS, LoneRow, Promise, Row, check
from tests.drill.stage import Stage
from tests.drill.target import running
from tests.waiting import ended

LOAD = 6
CAUSES = {
    signal.SIGKILL: "the-engine-was-killed",
    signal.SIGSTOP: "the-engine-was-stopped",
    signal.SIGSEGV: "the-engine-crashed",
}
FORM_SECONDS = {signal.SIGKILL: 8.0, signal.SIGSEGV: 8.0, signal.SIGSTOP: 25.0}
GONE_SECONDS = 3.0
END_SECONDS = 90.0


def strike(kind: str, number: signal.Signals, stage: Stage) -> str:
    """Send a signal to an engine."""
    send(stage.target.find(kind).pid, number)
    return ""


def strike_zygote(number: signal.Signals, stage: Stage) -> str:
    """Send a signal to the zygote. Another one follows, and the engine goes on."""
    lost, engine = stage.target.find("zygote").pid, stage.target.find("engine").pid
    send(lost, number)
    deadline = time.monotonic() + SERVES_SECONDS
    while stage.target.find("zygote").pid == lost:
        check(time.monotonic() < deadline, "it is not replaced")
        time.sleep(0.05)
    check(stage.target.find("engine").pid == engine, "the engine was replaced")
    return "another one follows, the engine goes on"


def strike_grammar(kind: str, number: signal.Signals, stage: Stage) -> str:
    """Send a signal to a process that tries or follows forms, once it runs; then ask for a new form."""
    serves_new_form(stage.target, FORM_SECONDS[signal.SIGSTOP])
    send(stage.target.find(kind).pid, number)
    return serves_new_form(stage.target, FORM_SECONDS[number])


def death(kind: str, number: signal.Signals, askers: int) -> Row:
    when = "at rest" if askers == 1 else "under load"
    fault = f"{number.name} of the {kind}, {when}"
    if kind == "zygote":
        own = "another one follows, and the engine goes on"
        action = partial(strike_zygote, number)
        return Row(fault, Promise(own, serves=SERVES_SECONDS), action, askers=askers, cause="the-zygote-was-lost")
    if kind == "engine":
        action, cause = partial(strike, kind, number), CAUSES[number]
        return Row(fault, Promise(serves=SERVES_SECONDS), action, askers=askers, cause=cause)
    own = f"a new form is answered within {FORM_SECONDS[number]:g} s"
    action, cause = partial(strike_grammar, kind, number), f"a-{'helper' if kind == 'trial' else kind}-was-lost"
    return Row(fault, Promise(own, serves=SERVES_SECONDS), action, askers=askers, cause=cause)


def in_flight(stage: Stage) -> str:
    """Kill the engine while requests run, streams among them."""
    questions = stage.canary.questions
    with ThreadPoolExecutor(len(questions)) as pool:
        answers = [pool.submit(ask, stage.target.url, question) for question in questions]
        deadline = time.monotonic() + 5
        while stage.target.metric("noria_requests_running") < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        send(stage.target.find("engine").pid, signal.SIGKILL)
        stage.mark()
    right = [answer.result().text == alone for answer, alone in zip(answers, stage.canary.alone, strict=True)]
    statuses = [answer.result().status for answer in answers]
    check(all(right), f"{sum(right)} of {len(right)} were answered ({statuses})")
    return f"{len(right)} of {len(right)} were answered"


def kill_while_loading(times: int, stage: Stage) -> str:
    """Kill each new engine as soon as it is there."""
    killed: set[int] = set()
    deadline = time.monotonic() + 60
    while len(killed) < times and time.monotonic() < deadline:
        for process in stage.target.processes():
            if process.kind == "engine" and process.pid not in killed:
                send(process.pid, signal.SIGKILL)
                killed.add(process.pid)
        time.sleep(0.05)
    return f"{len(killed)} engines killed"


def never_loads() -> str:
    """Kill every engine for ever: whoever runs the service must learn of it."""
    with running() as target:
        begun = time.monotonic()
        while target.alive() and time.monotonic() < begun + END_SECONDS:
            for process in target.processes():
                if "engine" in process.kind:
                    send(process.pid, signal.SIGKILL)
            time.sleep(0.05)
        check(not target.alive(), f"the service still runs after {END_SECONDS:g} s")
        code, seconds = target.server.process.returncode, time.monotonic() - begun
        check(code != 0, "exit code 0")
        return f"exit code {code} after {seconds:.0f} s: {target.log.strip().splitlines()[-1][:120]}"


def parent_killed() -> str:
    """SIGKILL of the service while its children run, or are stopped."""
    with running() as target:
        ask(target.url, new_form()[0])
        children = target.processes()[1:]
        for process in children:
            if process.kind in ("trial", "follower"):
                send(process.pid, signal.SIGSTOP)
        send(target.pid, signal.SIGKILL)
        deadline = time.monotonic() + GONE_SECONDS
        while (left := [it for it in children if not ended(it.pid)]) and time.monotonic() < deadline:
            time.sleep(0.02)
        for process in left:
            send(process.pid, signal.SIGKILL)
        check(not left, f"left behind: {', '.join(process.kind for process in left)}")
        return f"{len(children)} children ended"


def terminated() -> str:
    """SIGTERM while requests run: they are answered, then the service ends."""
    with running() as target, ThreadPoolExecutor(len(QUESTIONS)) as pool:
        asked = [pool.submit(ask, target.url, question) for question in QUESTIONS]
        while target.metric("noria_requests_running") < 1 and not all(answer.done() for answer in asked):
            time.sleep(0.01)
        code = target.stop()
        cut = sum(answer.result().status not in (200, 503) for answer in asked)
        check(not cut, f"{cut} requests were cut")
        check(code == 0, f"exit code {code}")
        return f"exit code 0, {sum(answer.result().status == 200 for answer in asked)} answers"


def suspended(seconds: float, stage: Stage) -> str:
    """Stop the service alone, then let it go on. Its engine goes on meanwhile and must not be replaced."""
    restarts = stage.target.metric("noria_engine_restarts_total")
    send(stage.target.pid, signal.SIGSTOP)
    time.sleep(seconds)
    send(stage.target.pid, signal.SIGCONT)
    stage.mark()
    time.sleep(1.0)
    more = stage.target.metric("noria_engine_restarts_total") - restarts
    check(not more, "the engine was replaced")
    return "the engine was kept"


def suspended_in_a_form(stage: Stage) -> str:
    """Stop the service and its trial process in the middle of a form's first request."""
    serves_new_form(stage.target, FORM_SECONDS[signal.SIGSTOP])
    pids = [stage.target.pid, stage.target.find("trial").pid]
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask_new_form, stage.target)
        for pid in pids:
            send(pid, signal.SIGSTOP)
        time.sleep(3.0)
        for pid in reversed(pids):
            send(pid, signal.SIGCONT)
        stage.mark()
    check(answer.result().status == 200, f"the form's request got {answer.result().status or 'no answer'}")
    return "the form's request was answered"


def hang_up(stage: Stage) -> str:
    """SIGHUP: the service reloads its files and cuts nothing."""
    before = {process.pid for process in tree(stage.target.pid)}
    send(stage.target.pid, signal.SIGHUP)
    time.sleep(1.0)
    check(stage.target.alive(), "SIGHUP ended the service")
    check(before <= {process.pid for process in tree(stage.target.pid)}, "a process was replaced")
    return "every process is the same"


KINDS = ("engine", "zygote", "trial", "follower")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV)
STOOD = "the-service-stood-still"
STILL = Promise("the engine is not replaced", serves=SERVES_SECONDS, live=None)
ROWS: tuple[Row | LoneRow, ...] = (
    *(death(kind, number, askers) for kind in KINDS for number in SIGNALS for askers in (1, LOAD)),
    Row(
        "SIGKILL of the engine while requests run",
        Promise("they are answered all the same, streams too", serves=SERVES_SECONDS),
        in_flight,
        cause=CAUSES[signal.SIGKILL],
    ),
    Row(
        "SIGKILL of the engine, three times while it loads",
        Promise(serves=30.0),
        partial(kill_while_loading, 4),
        cause=CAUSES[signal.SIGKILL],
    ),
    Row("SIGHUP of the service", Promise("it goes on, with the same processes"), hang_up, askers=LOAD, cause=NOTHING),
    Row("SIGSTOP of the service for 3 s, then SIGCONT", STILL, partial(suspended, 3.0), askers=LOAD, cause=STOOD),
    Row("SIGSTOP of the service for 12 s, then SIGCONT", STILL, partial(suspended, 12.0), cause=STOOD),
    Row(
        "SIGSTOP of service and trial for 3 s in a form's first request",
        Promise("the form is answered", serves=SERVES_SECONDS, live=None),
        suspended_in_a_form,
        cause=STOOD,
    ),
    LoneRow("SIGTERM while requests run", "none that had begun is cut, then exit code 0", terminated),
    LoneRow(
        "SIGKILL of the service, with trial and follower stopped",
        f"all its children end within {GONE_SECONDS:g} s",
        parent_killed,
    ),
    LoneRow(
        "SIGKILL of every engine, for ever", f"the service exits within {END_SECONDS:g} s, code not 0", never_loads
    ),
)
