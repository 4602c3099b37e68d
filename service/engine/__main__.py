"""`python -m service.engine module:callable FD`: the engine process. Only `process.EngineProcess` starts it."""

import logging
import os
import signal
import socket
import sys

from model.machine.child import die_with_parent, name_process
from service.engine.wire import Wire
from service.engine.worker import Worker


def main() -> None:
    die_with_parent()  # if the system cannot do that, the closed wire ends this process
    # Systemd signals every process of a unit; the service drains and then ends us by closing the wire.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s engine %(levelname)s %(message)s", stream=sys.stderr)
    runner, descriptor = sys.argv[1:]
    sock = socket.socket(fileno=int(descriptor))
    # The hard way out, because this thread may be deep inside a long computation.
    worker = Worker(Wire(sock), on_orphaned=lambda: os._exit(0), on_load=lambda: name_process("noria-engine"))
    name_process("noria-spare")
    worker.run(runner)


if __name__ == "__main__":
    main()
