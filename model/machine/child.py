"""Child processes in Python: their command, environment and end. Standard library only."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

HOME = Path(__file__).parents[2]
"""The folder of the packages `service` and `model`."""
PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15
STOPPED_SECONDS = 1.0
"""Silence after which a child that a signal has stopped is replaced: it does not continue by itself."""
SILENCE_SECONDS = 10.0
"""Silence after which a child counts as lost. It sends beats even inside a long step; a busy machine may delay them."""
LOADING_SILENCE_SECONDS = 120.0
"""The same for one that loads: an import of torch from a cold disk may hold the interpreter for long."""
PARENT = "NORIA_PARENT_PID"
"""The variable that tells a child which process started it."""


def python_command(
    module: str,
    *arguments: str,
    sockets: Sequence[socket.socket] = (),
    environment: Mapping[str, str | None] = MappingProxyType({}),
    **options: Any,
) -> tuple[list[str], dict[str, Any]]:
    """Return command line and keyword arguments, for `subprocess.Popen` and `asyncio.create_subprocess_exec` alike.

    The child inherits `sockets`; their descriptors follow the `arguments`. `environment` changes variables of this
    process's environment for the child; None removes one. The child has a session of its own: Ctrl-C in a terminal
    reaches only the parent, which then ends the child. `options` go to Popen.
    """
    descriptors = [sock.fileno() for sock in sockets]
    path = os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH")]))
    # CUDA would number GPUs by speed. nvidia-smi, from which plans are made, numbers them by bus.
    base = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", **os.environ}
    variables = {**base, "PYTHONPATH": path, PARENT: str(os.getpid()), **environment}
    # -P: a folder or file named "model" in the user's working directory must not shadow our package.
    return [sys.executable, "-P", "-m", module, *arguments, *map(str, descriptors)], {
        "stdin": subprocess.DEVNULL,
        "pass_fds": descriptors,
        "start_new_session": True,
        "env": {name: value for name, value in variables.items() if value is not None},
        **options,
    }


def start_python(module: str, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
    """Start the process of `python_command`. Raises OSError if the machine cannot start it."""
    line, settings = python_command(module, *arguments, **options)
    return subprocess.Popen(line, **settings)


def die_with_parent() -> None:
    """Ask Linux to kill this process when its parent dies, even while it is stopped. Does nothing elsewhere.

    A child calls this first of all; a parent without other threads may pass it as `preexec_fn`. The parent counts as
    dead when the thread that started the child ends.
    """
    parent = os.environ.pop(PARENT, None)
    die_with(None if parent is None else int(parent))


def die_with(parent: int | None) -> None:
    """Ask Linux to kill this process when its parent dies, whose process id this is if it is known."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent is not None and os.getppid() != parent:  # it died before it could be watched
            os._exit(1)


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped a process, where the system can tell."""
    return _stat(pid)[:1] in (["T"], ["t"])


def processor_ticks(pid: int) -> int:
    """Return the processor time of a process, in the system's clock ticks; 0 where the system cannot tell."""
    return sum(map(int, _stat(pid)[11:13]))


def resident_bytes(pid: int) -> int | None:
    """Return the bytes of a process in RAM, mapped files included; None where the system cannot tell."""
    fields = _stat(pid)
    return int(fields[21]) * os.sysconf("SC_PAGE_SIZE") if fields else None


def _stat(pid: int) -> list[str]:
    """Read the fields of `/proc/PID/stat` from the state on; empty where there are none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def ending(code: int) -> str:
    """Describe the end of a process for the log, from its `returncode`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # a real-time signal has no name
        return f"killed by signal {-code}"


def name_process(name: str) -> None:
    """Give this process a name of up to 15 characters, which `ps -o comm` and /proc show. Does nothing elsewhere.

    The main thread calls this.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode())


def title_process(*words: str) -> None:
    """Replace the command line of this process, as `ps` shows it, in its length. Does nothing where it is not known."""
    fields = _stat(os.getpid())[45:47] if sys.platform == "linux" else ()
    start, end = map(int, fields) if len(fields) == 2 else (0, 0)
    if start:  # an emulated system does not tell
        ctypes.memmove(start, "\0".join(words).encode()[: end - start - 1].ljust(end - start, b"\0"), end - start)
