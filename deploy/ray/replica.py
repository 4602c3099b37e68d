"""One replica: the application and its engine process, inside an actor of Ray Serve."""

import asyncio

from fastapi import FastAPI
from ray import serve

from deploy.ray.metrics import RayMetrics
from deploy.ray.middleware import HoldWithoutEngine, ReplicaHeaders
from model.errors import OptionError
from service.access.keys import Keys
from service.app import create_app
from service.engine.client import EngineClient
from service.generation.served import ServedModel
from service.generation.startup import load_served
from service.hosting.entries import read_entries
from service.observe.metrics import Metrics
from service.settings import Settings
from service.start import Engines


class Replica:
    """Serves the application of `noria serve`. Ray runs its methods on one thread, which lives as long as the replica.

    The engine is a child of this process and dies with it.
    """

    def __init__(self, settings: Settings) -> None:
        """Start the zygote. Raises NoriaError for settings that cannot work on this machine."""
        settings.check()
        self._settings = settings
        self._keys = Keys(settings.api_keys, settings.api_key_file)
        self._entry, *others = read_entries(settings)
        if others:
            raise OptionError("a replica of Ray serves one model: deploy an application for each")
        self._measured = Metrics()
        self._client = Engines(settings).client(settings, self._measured.of_model(self._entry.name))
        self._exporting: asyncio.Task[None] | None = None
        self._decided = asyncio.Event()  # set when the model is loaded, and when it never will be
        self._failure: Exception | None = None

    # Private: the public `serve.ingress(builder)` gives its builder no replica, so `check_health` could not see the
    # engine of the application. pyproject.toml bounds Ray's version.
    def __serve_build_asgi_app__(self) -> FastAPI:
        """Called by Ray after the constructor. Ray runs the application's lifespan, which loads the model."""
        app = create_app(
            self._settings,
            [self._entry],
            lambda entry: self._client,
            self._measured,
            self._keys,
            load=self._load,
            on_failed=self._on_failed,
        )
        app.add_middleware(ReplicaHeaders, replica=serve.get_replica_context().replica_id.unique_id)
        app.add_middleware(HoldWithoutEngine, client=self._client)
        return app

    async def check_health(self) -> None:
        """Raise RuntimeError once no engine will serve any more; then Ray replaces the replica.

        Ray calls this every few seconds, and sends no request before the first call has returned: that one waits until
        the model is loaded. An engine that is being replaced is healthy, because a fresh one serves within seconds.
        """
        await self._decided.wait()
        if self._failure is not None:
            raise RuntimeError(f"the model cannot be served: {self._failure}")

    async def _load(self, settings: Settings, client: EngineClient) -> ServedModel:
        served = await load_served(settings, client)
        self._exporting = asyncio.create_task(RayMetrics(self._measured).export())
        self._decided.set()
        return served

    def _on_failed(self, error: Exception) -> None:
        self._failure = error
        self._decided.set()


Ingress = serve.ingress()(Replica)
"""`Replica`, as Ray deploys it."""
