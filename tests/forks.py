"""Programs of this project that do not import its modules again: they are forked from a process that has done so.

`python -m tests.forks FD` is that process, one for each process that tests. It has one thread. A server that it forks
forks its first zygote itself: PyTorch is imported already.
"""

import atexit
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from model.machine.child import PARENT, python_command, start_python
from model.machine.forking import ForkedProcess, fork, n_threads
from service.commands import own_server
from service.engine.supervision import launch

MODULES = (
    "model.preloaded",
    *("service.cli", "service.commands.server", "service.start", "uvloop", "httptools"),
    *("gguf", "huggingface_hub", "jinja2.sandbox", "mistral_common.tokens.tokenizers.mistral", "tokenizers"),
)
"""What `noria serve` imports."""
LAUNCH = launch.launch
LARGEST = 2**20
"""Bytes of a request: arguments and variables."""
EARLY = ("HF_", "LD_", "OMP_", "PYTHON")
"""Beginnings of variables that are read while Python or a library starts."""


class Forked:
    """A running program with the methods of `subprocess.Popen` that tests use."""

    def __init__(
        self, arguments: Sequence[str], output: IO[bytes], errors: IO[bytes], environment: Mapping[str, str]
    ) -> None:
        """Start `python -m ARGUMENTS`. What it prints goes to `output` and `errors`."""
        self._end, theirs = socket.socketpair()
        with theirs:
            request = json.dumps([[*arguments], dict(environment)]).encode()
            socket.send_fds(_origin().socket, [request], [output.fileno(), errors.fileno(), theirs.fileno()])
        self.pid = int.from_bytes(self._end.recv(4), "big")
        assert self.pid, "the process that forks has ended"
        self.args = arguments
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._end.settimeout(timeout)
            try:
                self.returncode = int.from_bytes(self._end.recv(4), "big", signed=True)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired([*self.args], timeout or 0) from None
            self._end.close()
        return self.returncode

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> "Forked":
        return self

    def __exit__(self, *_: object) -> None:
        self.wait()


Running = Forked | subprocess.Popen[bytes]


def started(
    arguments: Sequence[str], environment: Mapping[str, str], output: IO[bytes], errors: IO[bytes] | None = None
) -> Running:
    """Start `python -m ARGUMENTS`, in a new interpreter if a variable matters to that."""
    if early(environment) != early(_origin().environment):
        command = [sys.executable, "-m", *arguments]
        return subprocess.Popen(command, stdout=output, stderr=errors or subprocess.STDOUT, env=environment)
    return Forked(arguments, output, errors or output, environment)


def finished(arguments: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Return the end of `python -m ARGUMENTS`, as `subprocess.run` does."""
    with TemporaryFile() as output, TemporaryFile() as errors:
        with started(arguments, environment, output, errors) as process:
            process.wait()
        texts = []
        for file in (output, errors):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(arguments, process.returncode or 0, *texts)


def early(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(EARLY)}


class Origin:
    """The process that forks for this one, and ends with it."""

    def __init__(self) -> None:
        self.environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.socket, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        command = [sys.executable, "-m", "tests.forks", str(theirs.fileno())]
        variables = {**self.environment, "OPENBLAS_NUM_THREADS": "1"}  # as a zygote has it
        with theirs:
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=variables)
        atexit.register(self._end)

    def _end(self) -> None:
        self.socket.close()
        self._process.wait()


_origin = cache(Origin)


def fork_for(control: socket.socket) -> Callable[[], object] | None:
    """Fork a child for each request; in the child, return what it does. Return None when nobody asks any more.

    A child's socket gets its process id, and its exit code when it ends, as `subprocess` has it.
    """
    assert len([*Path("/proc/self/task").iterdir()]) == 1, (
        "another thread may hold a lock, which a fork would keep for ever"
    )
    woken, wake = socket.socketpair()
    wake.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake.fileno())
    children: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        selector.register(woken, selectors.EVENT_READ)
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is woken:
                    woken.recv(4096)
                    reap(children)
                    continue
                request, descriptors, _, _ = socket.recv_fds(control, LARGEST, 3)
                if not request:
                    return None
                output, errors, end = descriptors
                if (pid := os.fork()) == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    for closed in (woken, wake, control, *children.values()):
                        closed.close()
                    os.dup2(output, 1)
                    os.dup2(errors, 2)
                    for descriptor in descriptors:
                        os.close(descriptor)
                    arguments, environment = json.loads(request)
                    return lambda: run(arguments, environment)
                os.close(output)
                os.close(errors)
                children[pid] = socket.socket(fileno=end)
                children[pid].send(pid.to_bytes(4, "big"))


def reap(children: dict[int, socket.socket]) -> None:
    with suppress(ChildProcessError):
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            with children.pop(ended[0]) as end, suppress(BrokenPipeError):
                end.send(os.waitstatus_to_exitcode(ended[1]).to_bytes(4, "big", signed=True))


def run(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    """Be `python -m ARGUMENTS`."""
    os.environ.clear()
    os.environ.update(environment)
    module, *sys.argv[1:] = arguments
    launch.launch = launch_forked
    own_server.start_python = start_forked  # type: ignore[assignment]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def launch_forked(module: str) -> launch.Launched:
    """Fork a zygote if this process has one thread, as when a server starts; else start one."""
    if n_threads() > 1:
        return LAUNCH(module)
    ours, theirs = socket.socketpair()
    with theirs:
        return launch.Launched(fork(partial(zygote, module, ours, theirs)), ours)  # type: ignore[arg-type]


class OwnServer(ForkedProcess):
    """The server that a command has forked, as `service/commands/own_server.py` ends it."""

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    @property
    def returncode(self) -> int | None:
        return self.poll()


def start_forked(
    *command: str, environment: Mapping[str, str | None], stdout: IO[bytes], **options: Any
) -> OwnServer | subprocess.Popen[bytes]:
    """Fork the server of a command, with its errors where its output goes, if this process has one thread."""
    if n_threads() > 1:
        return start_python(*command, environment=environment, stdout=stdout, **options)
    variables = python_command(*command, environment=environment)[1]["env"]
    del variables[PARENT]  # the server's zygote would take this process for its parent, and end

    def serve() -> None:
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for descriptor in (1, 2):
            os.dup2(stdout.fileno(), descriptor)
        try:
            run(command, variables)
        except SystemExit as end:
            sys.stderr.flush()
            os._exit(int(end.code or 0))

    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    return OwnServer(fork(serve).pid)


def zygote(module: str, ours: socket.socket, theirs: socket.socket) -> None:
    ours.close()
    sys.argv[1:] = [module, str(theirs.detach())]
    import_module("service.engine.__main__").main()


if __name__ == "__main__":
    for name in MODULES:
        import_module(name)
    work = fork_for(socket.socket(fileno=int(sys.argv[1])))
    if work is not None:
        work()
