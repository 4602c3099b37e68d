"""`python -m service.engine MODULE FD`: the engine process. It imports MODULE, if one is named, before all else.

Then it gets its runner, and format and level of its log, from the wire. Only `supervision.process` starts it.
"""

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys

from model.machine import frames
from model.machine.child import die_with_parent, name_process, title_process


def main() -> None:
    die_with_parent()  # if the system cannot do that, the closed wire ends this process
    # Systemd signals every process of a unit; the service drains and then ends us by closing the wire.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    gc.disable()  # until everything is imported: what imports make is no garbage
    module, descriptor = sys.argv[1:]
    if module:
        with contextlib.suppress(Exception):  # the runner's import meets the same fault and reports it
            importlib.import_module(module)
    from service import logs
    from service.engine.messages import Wire
    from service.engine.worker import Worker

    sock = socket.socket(fileno=int(descriptor))
    try:
        (runner, log_format, log_level), _ = frames.receive(sock)
    except OSError:  # the service could not start
        return
    logs.configure(log_format, log_level, "engine")
    # The hard way out, because this thread may be deep inside a long computation.
    worker = Worker(Wire(sock), end=lambda: os._exit(0), on_load=begin_to_load)
    name_process("noria-spare")
    worker.run(runner)


def begin_to_load(name: str) -> None:
    """Take the title for the model of this name. Everything is imported: the collector may leave it out from now on."""
    name_process("noria-engine")
    title_process("noria-engine", name, "-m", "service.engine")
    gc.freeze()
    gc.enable()


if __name__ == "__main__":
    main()
