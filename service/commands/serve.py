"""`noria serve`: the processes of engines, then the server in this one."""

import gc
import os
import signal
import socket
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

from model.errors import OptionError
from model.machine.host import check_addresses
from model.ranks.world import check_size, from_environment
from service.access.keys import Keys
from service.hosting.entries import ModelEntry, read_entries
from service.http.listening import listen, listen_at
from service.settings import Settings
from service.start import Engines

if TYPE_CHECKING:  # slow imports
    from service.engine.client import EngineClient
    from service.engine.supervision.launch import Launched


def run(settings: Settings, zygote: "Launched | None" = None) -> int:
    """Serve until a signal comes; returns the exit code. Raises NoriaError when the service cannot start.

    `zygote` is a process that is started already. If there is none, it starts before the slow imports, and so both
    processes load at once.
    """
    settings.check()
    check_addresses()
    world = from_environment()
    check_size(world, settings.layout.size)
    if world is not None and world.rank > 0:
        from service.commands.rank import supervise

        return supervise(settings, world)
    if settings.otlp_endpoint is None:
        # It has no effect then, and FastAPI does not start with a name that is not installed.
        os.environ.pop("OTEL_PROPAGATORS", None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until the server reloads at it
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # until it writes a record
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # who ignores it learns no exit code; a parent may have
    keys = Keys(settings.api_keys, settings.api_key_file)
    entries = read_entries(settings)
    if world is not None and len(entries) > 1:
        raise OptionError("several models cannot be served by ranks of torchrun: serve each with its own command")
    requests = listen(*settings.address) if settings.uds is None else listen_at(settings.uds)
    probes: AbstractContextManager[socket.socket | None] = nullcontext()
    if settings.health_port is not None:
        probes = listen(settings.address[0], settings.health_port, "--health-port")
    with requests as sock, probes as health:
        engines = Engines(settings, zygote)
        gc.disable()  # until everything is imported: what imports make is no garbage
        from service.commands.server import create_server
        from service.observe.metrics import Metrics

        metrics = Metrics()
        engines.watch_zygote(metrics.journal)

        def client_of(entry: ModelEntry) -> "EngineClient":
            return engines.client(entry.settings, metrics.of_model(entry.name))

        progress = settings.log_format == "human" and sys.stderr.isatty()
        server = create_server(settings, entries, client_of, metrics, sock, keys, progress=progress, health=health)
        gc.freeze()
        gc.enable()
        server.run([sock])
    return int(server.failed)
