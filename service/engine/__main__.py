"""`python -m service.engine FD module:callable`: the engine process. Started by `hosts.ProcessHost` only."""

import ctypes
import logging
import os
import signal
import socket
import sys

from service.engine.wire import Wire
from service.engine.worker import Child

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Ask Linux to kill us when the service dies, even while we are stopped; elsewhere the closed wire must do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    die_with_parent()
    # Systemd signals every process of a unit; the service drains and then ends us by closing the wire.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s engine %(levelname)s %(message)s", stream=sys.stderr)
    sock = socket.socket(fileno=int(sys.argv[1]))
    # The hard way out, because this thread may be deep inside a long computation.
    Child(Wire(sock), on_orphaned=lambda: os._exit(0)).run(sys.argv[2])


if __name__ == "__main__":
    main()
