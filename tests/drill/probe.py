"""A process that asks `/live` every 20 ms on a new connection, and the reader of its measurements.

`python -m tests.drill.probe PORT` writes a line for each request: when it began, its seconds, and what it got.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from typing import NamedTuple

from model.machine.child import die_with_parent

INTERVAL = 0.02
PATIENCE = 30.0
REQUEST = b"GET /live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


class Sample(NamedTuple):
    """One request: when it began (monotonic clock), its seconds, and its status (0: no answer)."""

    begun: float
    seconds: float
    status: int


def ask_live(port: int) -> Sample:
    """Ask `/live` once."""
    begun = time.monotonic()
    status = 0
    unanswered = contextlib.suppress(OSError, ValueError, IndexError)
    with unanswered, socket.create_connection(("127.0.0.1", port), PATIENCE) as sock:
        sock.sendall(REQUEST)
        status = int(sock.recv(100).split()[1])
    return Sample(begun, time.monotonic() - begun, status)


class Probe:
    """The measurements of one server's `/live`."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, "-m", "tests.drill.probe", str(port)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self._samples: list[Sample] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def since(self, begun: float) -> list[Sample]:
        """All requests that began after `begun`. Waits for the one that is on its way."""
        now = time.monotonic()
        while time.monotonic() < now + PATIENCE + 5 and (not self._samples or self._samples[-1].begun < now):
            time.sleep(INTERVAL)
        return [sample for sample in self._samples if sample.begun >= begun]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._thread.join()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            begun, seconds, status = line.split()
            self._samples.append(Sample(float(begun), float(seconds), int(status)))


def main() -> None:
    die_with_parent()
    with contextlib.suppress(PermissionError):
        os.nice(-10)  # it must measure the server and not its own wait for a core
    while True:
        sample = ask_live(int(sys.argv[1]))
        print(*sample, flush=True)
        time.sleep(max(0.0, INTERVAL - sample.seconds))


if __name__ == "__main__":
    main()
