"""Too few descriptors, processes, address space or memory, for a while."""

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from tests.drill.canary import COMPLETIONS, Question, ask
from tests.drill.forms import ask_new_form, serves_new_form
from tests.drill.probe import ask_live
from tests.drill.processes import Process, send
from tests.drill.row import LIVE_SECONDS, MIB, SERVES_SECONDS, LoneRow, NotPossible, Promise, Row, check
from tests.drill.stage import Stage
from tests.drill.target import running
from tests.drill.wire import connect

GROUPS = Path("/sys/fs/cgroup")
HELD_SECONDS = 3.0
FORM_SECONDS = 10.0


@contextmanager
def few_descriptors(process: Process, more: int) -> Iterator[None]:
    """A soft limit of a running process until the block ends: so many descriptors more than it has."""
    soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
    try:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (process.descriptors + more, hard))
        yield
    finally:
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def control_group(controller: str, limit: tuple[str, str], pids: list[int]) -> Iterator[Callable[[int], None]]:
    """A control group with a limit, under version 1 or 2. Gives a function that moves a process into it."""
    home = own_group(controller)
    group = home / f"noria-drill-{os.getpid()}"

    def move(pid: int, where: Path = group) -> None:
        with contextlib.suppress(ProcessLookupError):
            (where / "cgroup.procs").write_text(str(pid))

    try:
        group.mkdir()
        (group / limit[0]).write_text(limit[1])
        for pid in pids:
            move(pid)
        yield move
    except OSError as error:
        raise NotPossible(f"no control group with {limit[0]} can be made here ({error.strerror})") from None
    finally:
        if group.exists():
            for left in (group / "cgroup.procs").read_text().split():
                move(int(left), home)
            group.rmdir()


def own_group(controller: str) -> Path:
    """The directory of the control group that the drill runs in."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, names, path in lines:
        if controller in names.split(","):
            return GROUPS / controller / path.lstrip("/")
    return GROUPS / lines[-1][2].lstrip("/")


def memory_limit(n_bytes: int) -> tuple[str, str]:
    old = (GROUPS / "memory" / "memory.limit_in_bytes").exists()
    return ("memory.limit_in_bytes" if old else "memory.max", str(n_bytes))


def no_descriptors(stage: Stage) -> str:
    """Leave the service three descriptors, take those with connections, and ask for health and for a new form."""
    serves_new_form(stage.target, FORM_SECONDS)
    service = stage.target.find("service")
    with ExitStack() as held:
        held.enter_context(few_descriptors(service, 3))
        send(stage.target.find("trial").pid, signal.SIGKILL)
        for _ in range(50):
            held.enter_context(connect(stage.target.port))
        time.sleep(1.5)  # the server looks once a second
        health = ask_live(stage.target.health_port)
        form = ask_new_form(stage.target)
    stage.mark()
    check(health.status == 200, "the health port did not answer")
    check(health.seconds <= LIVE_SECONDS, f"the health port took {health.seconds:.1f} s")
    return f"meanwhile a new form got {form.status or 'no answer'}; {serves_new_form(stage.target, FORM_SECONDS)}"


def no_processes(kind: str, stage: Stage) -> str:
    """Allow no further process or thread, and kill one that is needed."""
    serves_new_form(stage.target, FORM_SECONDS)
    processes, killed = stage.target.processes(), stage.target.find(kind)
    threads = sum(process.status("Threads") for process in processes if process != killed)
    with control_group("pids", ("pids.max", str(threads)), [process.pid for process in processes]):
        send(killed.pid, signal.SIGKILL)
        time.sleep(1.5)  # the server looks once a second
        form = ask_new_form(stage.target)
    stage.mark()
    return f"meanwhile a new form got {form.status or 'no answer'}"


def little_address_space(kind: str) -> str:
    """Lower the hard limit of address space for good, and kill the grammar child: the next one inherits the limit."""
    with running() as target:
        serves_new_form(target, FORM_SECONDS)
        process = target.find(kind)
        limit = process.status("VmSize") + 512 * MIB
        resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, limit))
        send(target.find("trial" if kind == "service" else "follower").pid, signal.SIGKILL)
        time.sleep(0.2)
        return "; ".join(serves_new_form(target, FORM_SECONDS) for _ in range(2))


def no_memory_to_load(stage: Stage) -> str:
    """Kill the engine, and let its successors have too little memory to load, for some seconds."""
    killed = stage.target.find("engine")
    with control_group("memory", memory_limit(96 * MIB), []) as move:
        send(killed.pid, signal.SIGKILL)
        moved: set[int] = set()
        deadline = time.monotonic() + HELD_SECONDS
        while time.monotonic() < deadline:
            for process in new_engines(stage, moved | {killed.pid}):
                move(process.pid)
                moved.add(process.pid)
            time.sleep(0.02)
    stage.mark()
    check(moved, "no engine was started")
    return f"{len(moved)} engines had 96 MiB"


def new_engines(stage: Stage, known: set[int]) -> list[Process]:
    return [process for process in stage.target.processes() if "engine" in process.kind and process.pid not in known]


def no_memory_to_serve(stage: Stage) -> str:
    """Let the running engine have no more memory while it computes a long prompt."""
    with control_group("memory", memory_limit(4 * MIB), [stage.target.find("engine").pid]):
        answer = ask(
            stage.target.url, Question(COMPLETIONS, {"prompt": [100 + n for n in range(2000)], "max_tokens": 1})
        )
    stage.mark()
    check(not 400 <= answer.status < 500, f"the long prompt got {answer.status}")
    return f"the long prompt got {answer.status or 'no answer'}"


NO_BLAME = "no good form gets a 4xx, and one is answered afterwards"
ROWS: tuple[Row | LoneRow, ...] = (
    Row(
        "no descriptors left, trial process killed",
        Promise(f"the health port answers; {NO_BLAME}", serves=SERVES_SECONDS, live=None),
        no_descriptors,
        cause="no-descriptors",
    ),
    *(
        Row(
            f"no further process or thread, {kind} killed",
            Promise(NO_BLAME, serves=SERVES_SECONDS),
            partial(no_processes, kind),
            cause="no-processes",
        )
        for kind in ("trial", "follower", "engine")
    ),
    *(
        LoneRow(f"address space of the {kind} limited for good", NO_BLAME, partial(little_address_space, kind))
        for kind in ("service", "engine")
    ),
    Row(
        "too little memory to load an engine, for 3 s",
        Promise(serves=30.0),
        no_memory_to_load,
        cause="no-memory-to-load",
    ),
    Row(
        "no more memory for the engine in a step",
        Promise("no 4xx", serves=SERVES_SECONDS),
        no_memory_to_serve,
        cause="out-of-memory",
    ),
)
