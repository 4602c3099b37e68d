"""`python -m service.engine module:callable FORMAT LEVEL FD`: the engine process, with format and level of its log.

Only `process.EngineProcess` starts it.
"""

import os
import signal
import socket
import sys

from model.machine.child import die_with_parent, name_process
from service import logs
from service.engine.wire import Wire
from service.engine.worker import Worker


def main() -> None:
    die_with_parent()  # if the system cannot do that, the closed wire ends this process
    # Systemd signals every process of a unit; the service drains and then ends us by closing the wire.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    runner, log_format, log_level, descriptor = sys.argv[1:]
    logs.configure(log_format, log_level, "engine")
    sock = socket.socket(fileno=int(descriptor))
    # The hard way out, because this thread may be deep inside a long computation.
    worker = Worker(Wire(sock), end=lambda: os._exit(0), on_load=lambda: name_process("noria-engine"))
    name_process("noria-spare")
    worker.run(runner)


if __name__ == "__main__":
    main()
