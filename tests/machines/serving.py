"""A server started as a user starts it on some machine, one question with a known answer, and its end."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import httpx

from tests.e2e.server import MODEL, free_port
from tests.waiting import PATIENCE, eventually

ROOT = Path(__file__).parents[2]
SERVE = (sys.executable, "-m", "service", "serve")
"""What `make serve` runs, for a working directory of ROOT."""
QUESTION = "What is the capital of Japan?"
ANSWER = "The capital of Japan is Tokyo."
OWN = ("OMP_NUM_THREADS", "PYTHONPATH", "TRITON_INTERPRET", "PYTHONDONTWRITEBYTECODE", "OPENBLAS_CORETYPE")
"""Variables of the tests' process, which a user's shell does not have: the last names this machine's processor, not the
emulated one. Variables NORIA_* are left out too."""
NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Served:
    """A server that is ready."""

    http: httpx.Client
    log: Path

    def answer(self) -> str:
        """What the embedded model answers to QUESTION."""
        messages = [{"role": "user", "content": QUESTION}]
        body = {"model": MODEL, "temperature": 0, "messages": messages}
        reply = self.http.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, f"{reply.text}\n{self.log.read_text()}"
        return str(reply.json()["choices"][0]["message"]["content"])

    def version(self) -> dict[str, Any]:
        return dict(self.http.get("/version").json())


@contextmanager
def served(
    command: Sequence[str], environment: Mapping[str, str] = NONE, cwd: Path = ROOT, patience: float = 5 * PATIENCE
) -> Iterator[Served]:
    """Run a command that starts a server until the block ends. `patience` bounds its start and each answer, in seconds.

    The port goes to it as PORT, which the Makefile reads, and as NORIA_PORT, which `noria serve` reads.
    """
    port = str(free_port())
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        variables = own_shell() | {"PORT": port, "NORIA_PORT": port} | dict(environment)
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=variables, cwd=cwd, start_new_session=True
            )
        with process, httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=patience) as http:
            try:
                eventually(lambda: _ready(process, http, log), f"{command} is ready", patience)
                yield Served(http, log)
                os.killpg(process.pid, signal.SIGTERM)  # of the group that the command leads: make's and its child
                process.wait(patience)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{log.read_text()}") from error
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)


def refused(
    command: Sequence[str], environment: Mapping[str, str] = NONE, cwd: Path = ROOT, patience: float = 2 * PATIENCE
) -> str:
    """The last line of a command that must not start a server. It fails, and shows no traceback."""
    variables = own_shell() | {"NORIA_PORT": str(free_port())} | dict(environment)
    ended = subprocess.run(command, env=variables, cwd=cwd, capture_output=True, text=True, timeout=patience)
    output = ended.stdout + ended.stderr
    assert ended.returncode > 0, output
    assert "Traceback" not in output, output
    return output.splitlines()[-1]


def own_shell() -> dict[str, str]:
    """The environment of a user's shell: this process's without what the tests put in it."""
    return {name: value for name, value in os.environ.items() if name not in OWN and not name.startswith("NORIA_")}


def _ready(process: subprocess.Popen[bytes], http: httpx.Client, log: Path) -> bool:
    assert process.poll() is None, f"exit code {process.returncode}"
    try:
        return http.get("/ready").status_code == 200
    except httpx.TransportError:
        return False
