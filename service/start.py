"""The start of engine processes, before the slow imports of the service."""

from typing import TYPE_CHECKING

from service.settings import Settings

if TYPE_CHECKING:  # slow imports
    from service.engine.client import EngineClient
    from service.engine.supervision.launch import Launched
    from service.engine.supervision.process import EngineProcess
    from service.engine.tape import SharedTape
    from service.observe.journal import Journal
    from service.observe.model_metrics import ModelMetrics


class Engines:
    """The maker of clients of a server's engines, which one zygote forks; it configures the logs."""

    def __init__(self, settings: Settings, launched: "Launched | None" = None) -> None:
        """Take a zygote that imports already, or start one. The thread that started it must outlive it."""
        from service import logs
        from service.engine.supervision.launch import NETWORK
        from service.engine.supervision.zygote import Zygote

        logs.configure(settings.log_format, settings.level())
        self._format = settings.log_format
        self._zygote = Zygote(NETWORK, launched)

    def watch_zygote(self, journal: "Journal") -> None:
        """Take note when the zygote is lost."""
        self._zygote.on_lost = lambda how: journal.note("zygote", how)

    def client(self, settings: Settings, measured: "ModelMetrics") -> "EngineClient":
        """Return the client of an engine that is not started yet. `measured` counts what the engine reports."""
        from service.engine.client import EngineClient
        from service.engine.tape import SharedTape

        n_ranks, tape = settings.layout.size, SharedTape()
        return EngineClient(
            lambda: self._process(n_ranks, tape),
            name=settings.names[0],
            step_timeout=settings.step_timeout,
            continues=settings.on_engine_loss == "continue",
            on_report=measured.observe_report,
            on_beat=measured.observe_beat,
            on_restart=measured.observe_restart,
            on_continue=measured.observe_continued,
            steps=tape.steps,
        )

    def _process(self, n_ranks: int, tape: "SharedTape") -> "EngineProcess":
        from service import logs
        from service.engine.supervision.process import EngineProcess

        runner = f"model.ranks.start:starter:{n_ranks}" if n_ranks > 1 else "model.loading:create"
        return EngineProcess(runner, self._zygote, (self._format, logs.level()), tape)
