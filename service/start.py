"""The start of the engine process, before the slow imports of the service."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from service.settings import Settings

if TYPE_CHECKING:  # slow imports
    from service.engine.client import EngineClient
    from service.engine.supervision.process import Launched
    from service.observe.model_metrics import ModelMetrics


def start_engine(
    settings: Settings, measured: Callable[[], "ModelMetrics"], engine: "Launched | None" = None
) -> "EngineClient":
    """The client of an engine process, which is `engine` or started now. The thread that started it must outlive it.

    An engine of several ranks starts once the model's configuration is known: each of them takes memory and time.

    `measured` gives the metrics that count what the engine reports; no report comes before the model is loaded. Logs
    are configured. Raises NoriaError if the machine cannot start a process.
    """
    from service import logs

    logs.configure(settings.log_format, settings.level())
    client = new_client(settings, measured, engine)
    if settings.layout.size == 1:
        client.spawn()  # else `load_served` first sees whether the model fits the ranks
    return client


def new_client(
    settings: Settings, measured: Callable[[], "ModelMetrics"], engine: "Launched | None" = None
) -> "EngineClient":
    """The client of an engine that is not started yet, or is the process `engine`. Otherwise as `start_engine`."""
    from service import logs
    from service.engine.client import EngineClient
    from service.engine.supervision.process import NETWORK, EngineProcess, launch

    n_ranks = settings.layout.size
    runner = f"model.ranks.start:starter:{n_ranks}" if n_ranks > 1 else f"{NETWORK}:create"
    launched = [] if engine is None else [engine]

    def new_engine() -> EngineProcess:
        start = launched.pop if launched else partial(launch, NETWORK)
        return EngineProcess(runner, (settings.log_format, logs.level()), start)

    return EngineClient(
        new_engine,
        name=settings.names[0],
        step_timeout=settings.step_timeout,
        spare=settings.spare_engine,
        continues=settings.on_engine_loss == "continue",
        on_report=lambda report: measured().observe_report(report),
        on_beat=lambda beat: measured().observe_beat(beat),
        on_restart=lambda: measured().observe_restart(),
        on_continue=lambda: measured().observe_continued(),
    )
