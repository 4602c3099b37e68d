"""A server of a command's own: it listens on a Unix socket that only the user reaches, and ends with the command."""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import IO

import httpx

from model.errors import OptionError
from model.machine.child import PARENT, die_with_parent, start_python
from model.machine.host import KERNELS
from model.options import RunnerOptions, flags
from service.commands.flags import PREFIX, variable
from service.receipts.keys import make_key
from service.settings import Settings

BASE_URL = "http://localhost"
POLL_SECONDS = 0.1
READY_SECONDS, END_SECONDS = 5.0, 10.0
OPTIONS = {field.name for field in fields(RunnerOptions)} | {
    *("revision", "served_model_name", "chat_template", "reasoning_style", "reasoning_budget", "repetition_detection"),
    *("lora", "max_body_bytes", "max_images", "max_image_pixels", "step_timeout"),
}
"""The server gets the user's variables of these options. Others are for a server with clients, probes and a log."""


@contextmanager
def own_socket(
    model: str | None,
    on_loading: Callable[[str, float], None],
    arguments: Sequence[str] = (),
    unset: Sequence[str] = (),
    *,
    signs: bool = False,
) -> Iterator[str]:
    """Start `noria serve MODEL ARGUMENTS` as a child process; the context is the path of its socket, once it is ready.

    `on_loading(stage, fraction)` is called while the server loads. The server does not get the variables `unset`. One
    that `signs` receipts has a key that ends with it. Raises OptionError with the last line of the server's log if the
    server ends before it is ready.
    """
    short = None if len(tempfile.gettempdir()) < 80 else "/tmp"  # a socket's path has at most 107 bytes
    with tempfile.TemporaryDirectory(prefix="noria-", dir=short) as folder, tempfile.TemporaryFile() as log:
        path, key = str(Path(folder) / "socket"), Path(folder) / "key.pem"
        if signs:
            make_key(key)
            arguments = [*arguments, "--receipt-key", str(key)]
        process = _start([*([model] if model else []), *arguments, "--uds", path], unset, log)
        try:
            transport = httpx.HTTPTransport(uds=path)
            with httpx.Client(base_url=BASE_URL, transport=transport, timeout=READY_SECONDS) as client:
                while not _ready(client, on_loading):
                    if process.poll() is not None:
                        raise OptionError(_last_line(log) or f"the server ended with exit code {process.returncode}")
                    time.sleep(POLL_SECONDS)
            yield path
        finally:
            _end(process)


def not_for_own_server(names: Iterable[str]) -> list[str]:
    """Return the NORIA_* variables among these that a server of our own does not get."""
    passed = {variable(field) for field, _ in flags(Settings) if field.name in OPTIONS} | {KERNELS, PARENT}
    return [name for name in names if name.startswith(PREFIX) and name not in passed]


def _start(arguments: Sequence[str], unset: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start the server in its own session: Ctrl-C stops an answer, not the server. No thread may run yet."""
    return start_python(
        *("service", "serve", *arguments, "--log-level", "warning"),
        environment=dict.fromkeys([*not_for_own_server(os.environ), *unset]),
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
