"""`noria serve`: the engine process, then the server in this one."""

import sys

from service.http.listening import listen
from service.settings import Settings


def run(settings: Settings) -> int:
    """Serve until a signal comes; returns the exit code. Raises NoriaError when the service cannot start.

    The engine process starts before the slow imports, and so both processes load at once.
    """
    settings.check()
    with listen(settings.host, settings.port) as sock:
        from service.engine.client import EngineClient
        from service.engine.supervision.process import EngineProcess

        client = EngineClient(
            EngineProcess,
            step_timeout=settings.step_timeout,
            spare=settings.spare_engine,
            on_report=lambda report: metrics.observe_report(report),
            on_restart=lambda: metrics.observe_restart(),
        )
        client.spawn()
        from service import logs
        from service.app import create_server
        from service.metrics import Metrics

        logs.configure(settings.log_format, settings.log_level)
        metrics = Metrics(lambda: client.stats)
        progress = settings.log_format == "human" and sys.stderr.isatty()
        server = create_server(settings, client, metrics, sock.getsockname()[1], progress=progress)
        server.run([sock])
    return int(server.failed)
