"""A server for one chat: it listens on a free port of 127.0.0.1 and ends with the chat."""

import os
import secrets
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO

import httpx

from model.errors import OptionError
from model.machine.child import PARENT, die_with_parent, start_python
from model.machine.host import KERNELS
from model.options import grouped_flags
from service.commands.endpoint import headers
from service.commands.flags import PREFIX, variable
from service.settings import Settings

POLL_SECONDS = 0.1
END_SECONDS = 10.0
GROUPS = ("Model", "Computation", "Lengths and memory", "Sharding", "Chat", "LoRA adapters", "Limits", "Images")
"""The server gets the user's variables of these flags. Others are for a server that has clients, probes and a log."""


@contextmanager
def embedded_server(
    model: str | None, on_loading: Callable[[str, float], None], flags: Sequence[str] = (), module: str = "service"
) -> Iterator[httpx.Client]:
    """Start `noria serve MODEL FLAGS` as a child process; the context is a client of the server, once that is ready.

    `module` is run, which has the commands of `noria`.
    `on_loading(stage, fraction)` is called while the server loads. Only this client has the server's key. Raises
    OptionError with the last line of the server's log if the server ends before it is ready.
    """
    port, key = _free_port(), secrets.token_urlsafe(32)
    with tempfile.TemporaryFile() as log:
        process = _start(module, [*([model] if model else []), *flags], port, key, log)
        try:
            url = f"http://127.0.0.1:{port}"
            with httpx.Client(base_url=url, headers=headers(key), timeout=None, trust_env=False) as client:
                while not _ready(client, on_loading):
                    if process.poll() is not None:
                        raise OptionError(_last_line(log) or f"the server ended with exit code {process.returncode}")
                    time.sleep(POLL_SECONDS)
                yield client
        finally:
            _end(process)


def not_for_own_server(names: Iterable[str]) -> list[str]:
    """The NORIA_* variables among these that a server of our own does not get."""
    passed = {variable(field) for group, field, _ in grouped_flags(Settings) if group in GROUPS}
    passed |= {"NORIA_STEP_TIMEOUT", KERNELS, PARENT}
    return [name for name in names if name.startswith(PREFIX) and name not in passed]


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def _start(module: str, arguments: Sequence[str], port: int, key: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the server in its own session: Ctrl-C stops an answer, not the server. No thread may run yet."""
    where = ("--host", "127.0.0.1", "--port", str(port), "--log-level", "warning", "--no-spare-engine")
    return start_python(
        *(module, "serve", *arguments, *where),
        environment=dict.fromkeys(not_for_own_server(os.environ)) | {"NORIA_API_KEY": key},
        stdout=log,
        stderr=log,
        preexec_fn=die_with_parent,
    )


def _ready(client: httpx.Client, on_loading: Callable[[str, float], None]) -> bool:
    try:
        response = client.get("/ready")
    except httpx.TransportError:
        on_loading("starting", 0.0)  # it does not listen yet
        return False
    if not response.is_success:
        state = response.json()
        on_loading(state.get("stage") or "starting", state.get("progress") or 0.0)
    return response.is_success


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").strip().splitlines()
    return lines[-1].removeprefix("noria: ") if lines else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
