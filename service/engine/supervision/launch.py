"""The start of the zygote's process, before the slow imports of the service."""

import socket
import subprocess
from typing import NamedTuple

from model.machine.child import start_python

NETWORK = "model.preloaded"
"""The module that imports what a runner of a model needs. PyTorch is among that, which takes longest of all."""
PID_BYTES = 4
ENGINE = "engine"
"""The word before MODULE for an engine that is not forked."""


class Launched(NamedTuple):
    """A zygote, and the service's end of the socket over which it gets wires."""

    process: "subprocess.Popen[bytes]"
    sock: socket.socket


def launch(module: str) -> Launched:
    """Start a zygote. It imports `module`, if one is named. Raises OSError if the machine cannot start a process."""
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            # NumPy's products are few and small, and its threads would start with its import: a fork needs one thread.
            variables = {"OPENBLAS_NUM_THREADS": "1"}
            return Launched(start_python("service.engine", module, sockets=[theirs], environment=variables), ours)
        except BaseException:
            ours.close()
            raise
