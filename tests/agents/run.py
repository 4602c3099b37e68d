"""Runs agents, unchanged, against one live server: each in an environment of its own, and without a network.

`python -m tests.agents.run codex` installs the lists of tests/agents/codex, as `tests.clients.run` does, and starts
itself again in a network namespace that has the loopback only. There the tests of the folder run the agent against
the embedded model, behind a proxy (`proxy.py`) that records what it sends. Without a name it runs all folders.
A folder whose Python this machine lacks does not pass: it is named at the end. PIP_ARGS goes to every pip install.
AGENTS_RECORDS names a folder for the recorded requests (`records.py`).
"""

import fcntl
import os
import socket
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.clients.run import INSTALLS, MISSING, prepared, tested
from tests.e2e.server import MODEL, serving

HERE = Path(__file__).parent
NAMES = sorted({path.parent.name for path in HERE.glob("*/test_*")})
SERVED = ("--served-model-name", MODEL, "--served-model-name", "mistral-small-latest")
"""A client that knows Mistral's models only uses the second name."""
ALONE = ("unshare", "--net", "--map-root-user")
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1
"""Linux's SIOCGIFFLAGS, SIOCSIFFLAGS and IFF_UP."""


def is_alone() -> bool:
    return [name for _, name in socket.if_nameindex()] == ["lo"]


def raise_loopback() -> None:
    """A new network namespace has its loopback down."""
    with socket.socket() as opened:
        flags = struct.unpack("16sh", fcntl.ioctl(opened, GET_FLAGS, struct.pack("16sh", b"lo", 0)))[1]
        fcntl.ioctl(opened, SET_FLAGS, struct.pack("16sh", b"lo", flags | UP))


def main() -> int:
    names = sys.argv[1:] or NAMES
    with ThreadPoolExecutor(INSTALLS) as pool:
        made = list(pool.map(lambda name: prepared(name, HERE), names))
    if not is_alone():
        sys.stdout.flush()
        os.execvp(ALONE[0], [*ALONE, sys.executable, "-m", "tests.agents.run", *names])
    raise_loopback()
    failed: list[str] = []
    missing: list[str] = []
    with serving(*SERVED) as server:
        for name, (programs, failure) in zip(names, made, strict=True):
            started = time.monotonic()
            failure = failure or tested(name, programs, {"NORIA_URL": server.url}, HERE)
            print(f"{name}: {failure or f'passes in {time.monotonic() - started:.0f} s'}", flush=True)
            (missing if failure == MISSING else failed).extend([name] if failure else [])
    n_passed = len(names) - len(failed) - len(missing)
    print(f"{n_passed} of {len(names)} folders of agents pass", *failed, sep="\nfailed: ")
    print(*(f"not run: {name}\n" for name in missing), sep="", end="")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
