"""Runs agents, unchanged, against one live server: each in an environment of its own, and without a network.

`python -m tests.agents.run codex` installs the lists of tests/agents/codex, as `tests.clients.run` does, and starts
itself again in a network namespace that has the loopback only. There the tests of the folder run the agent against
the embedded model, behind a proxy (`proxy.py`) that records what it sends. Without a name it runs all folders.
A folder whose Python this machine lacks does not pass: it is named at the end. PIP_ARGS goes to every pip install. An
install that fails is tried once more, because package indexes fail now and then; if it fails again, no test runs.
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
from shutil import which

from tests.clients.run import INSTALLS, MISSING, prepared, run, tested
from tests.e2e.server import MODEL, serving

HERE = Path(__file__).parent
NAMES = sorted({path.parent.name for path in HERE.glob("*/test_*")})
SERVED = ("--served-model-name", MODEL, "--served-model-name", "mistral-small-latest")
"""A client that knows Mistral's models only uses the second name."""
ALONE = ("unshare", "--net", "--map-root-user")
DONE = ("", MISSING)
"""What `prepared` says if a second attempt would say the same."""
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1
"""Linux's SIOCGIFFLAGS, SIOCSIFFLAGS and IFF_UP."""


def is_alone() -> bool:
    return [name for _, name in socket.if_nameindex()] == ["lo"]


def raise_loopback() -> None:
    """A new network namespace has its loopback down."""
    with socket.socket() as opened:
        flags = struct.unpack("16sh", fcntl.ioctl(opened, GET_FLAGS, struct.pack("16sh", b"lo", 0)))[1]
        fcntl.ioctl(opened, SET_FLAGS, struct.pack("16sh", b"lo", flags | UP))


def refusal() -> str:
    """Why this machine gives us no network namespace; empty if it does."""
    if which(ALONE[0]) is None:
        return f"{ALONE[0]} is not installed"
    return " ".join(run(*ALONE, "true").split())


def installed(name: str) -> tuple[Path, str]:
    """The folder of an agent's programs and what failed at the second attempt to make it."""
    programs, failure = prepared(name, HERE)
    return (programs, failure) if failure in DONE else prepared(name, HERE)


def main() -> int:
    names = sys.argv[1:] or NAMES
    if not is_alone() and (refused := refusal()):
        print(f"agents run in a network namespace of their own, made by {' '.join(ALONE)}: {refused}")
        return 1
    with ThreadPoolExecutor(INSTALLS) as pool:
        made = list(pool.map(installed, names))
    broken = [f"{name}: {failure}" for name, (_, failure) in zip(names, made, strict=True) if failure not in DONE]
    if broken:
        print(*broken, sep="\n")
        return 1
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
