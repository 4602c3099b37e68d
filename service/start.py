"""The start of engine processes, before the slow imports of the service."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from service.settings import Settings

if TYPE_CHECKING:  # slow imports
    from service.engine.client import EngineClient
    from service.engine.supervision.process import EngineProcess, Launched
    from service.engine.supervision.spare import Spare
    from service.observe.model_metrics import ModelMetrics


class Engines:
    """The maker of clients of a server's engines; it configures the logs. Engines of as many ranks share a spare one.

    `launched` is a process that imports already; the first engine gets it.
    """

    def __init__(self, settings: Settings, launched: "Launched | None" = None) -> None:
        from service import logs

        logs.configure(settings.log_format, settings.level())
        self._launched = [] if launched is None else [launched]
        self._format = settings.log_format
        self._spares: dict[int, Spare] = {}

    def start(self, settings: Settings, measured: Callable[[], "ModelMetrics"]) -> "EngineClient":
        """Return the client of an engine process that starts now. The thread that starts it must outlive it.

        An engine of several ranks starts once the model's configuration is known: each of them takes memory and time.
        Raises NoriaError if the machine cannot start a process.
        """
        client = self.client(settings, measured)
        if settings.layout.size == 1:
            client.spawn()  # else `load_served` first sees whether the model fits the ranks
        return client

    def client(self, settings: Settings, measured: Callable[[], "ModelMetrics"]) -> "EngineClient":
        """Return the client of an engine that is not started yet.

        `measured` gives the metrics that count what the engine reports; no report comes before the model is loaded.
        """
        from service.engine.client import EngineClient

        n_ranks = settings.layout.size
        return EngineClient(
            lambda: self._process(n_ranks),
            name=settings.names[0],
            step_timeout=settings.step_timeout,
            spare=self._spare(n_ranks) if settings.spare_engine else None,
            continues=settings.on_engine_loss == "continue",
            on_report=lambda report: measured().observe_report(report),
            on_beat=lambda beat: measured().observe_beat(beat),
            on_restart=lambda: measured().observe_restart(),
            on_continue=lambda: measured().observe_continued(),
        )

    def _spare(self, n_ranks: int) -> "Spare":
        from service.engine.supervision.spare import Spare

        if n_ranks not in self._spares:
            self._spares[n_ranks] = Spare(lambda: self._process(n_ranks))
        return self._spares[n_ranks]

    def _process(self, n_ranks: int) -> "EngineProcess":
        from service import logs
        from service.engine.supervision.process import NETWORK, EngineProcess, launch

        runner = f"model.ranks.start:starter:{n_ranks}" if n_ranks > 1 else f"{NETWORK}:create"
        start = self._launched.pop if self._launched else partial(launch, NETWORK)
        return EngineProcess(runner, (self._format, logs.level()), start)
