"""`/live`, `/ready`, `/health`, `/ping` (no key needed) and `/version`."""

from collections.abc import Callable
from typing import Any, Literal, NotRequired

import orjson
from starlette.responses import Response
from typing_extensions import TypedDict

from service import version
from service.access.record import Policy
from service.api.call import Call
from service.api.routes import get, json_response
from service.api.state import State

PROBE = Policy(open=True, quiet=True)
STALLED_SECONDS = 10.0
"""Silence of the event loop after which the process does not count as live on the port for probes."""


class Live(TypedDict):
    status: Literal["live"]


class HealthStatus(TypedDict):
    """`status` is ready, draining, starting, loading, restarting or failed.
    `trouble` says what is wrong, if anything is, as `noria explain` does.
    """

    status: str
    trouble: NotRequired[str]


class Readiness(HealthStatus):
    """The stage of loading, and its progress from 0 to 1, while the server is not ready and not draining."""

    stage: NotRequired[str]
    progress: NotRequired[float]


class Version(TypedDict):
    """`engine` describes the first model and how it is run; null while it is not loaded."""

    version: str
    engine: dict[str, str | int] | None
    fingerprint: str | None


def readiness(state: State) -> tuple[Readiness, int]:
    """Return the answer of `/ready`, and its status."""
    status = state.drain.over(state.models.status)
    if status == "ready" and state.settings.canary == "unready" and state.metrics.journal.n_wrong:
        return {"status": "failed", "stage": "the canary got wrong bits"}, 503
    if status == "ready":
        return {"status": status}, 200
    report: Readiness = {"status": status}
    if not state.drain.draining:
        client = next((model.client for model in state.models if model.state == "loading"), state.models.first.client)
        report["stage"] = client.stage
        report["progress"] = round(client.progress, 3)
    return report, 503


def engine_health(state: State) -> tuple[HealthStatus, int]:
    """Return the answer of `/health`, and its status."""
    status = state.models.status
    report: HealthStatus = {"status": state.drain.over(status)}
    if trouble := state.metrics.journal.trouble:
        report["trouble"] = trouble
    return report, 200 if status == "ready" else 503


def probed(state: State | None, path: str) -> tuple[int, bytes] | None:
    """Return status and JSON of a probe on a port of its own; None for another path. `state` is None before the start.

    Called from any thread: it only reads. Here `/live` also says whether the event loop runs.
    """
    silent = 0.0 if state is None else state.metrics.event_loop_silence()
    answers: dict[str, Callable[[], tuple[Any, int]]] = {
        "/live": lambda: ({"status": "live"}, 200) if silent < STALLED_SECONDS else ({"status": "stalled"}, 503),
        "/ready": lambda: ({"status": "starting"}, 503) if state is None else readiness(state),
        "/health": lambda: ({"status": "starting"}, 503) if state is None else engine_health(state),
    }
    if path not in answers:
        return None
    report, status = answers[path]()
    return status, orjson.dumps(report)


@get("/live", answer=Live, policy=PROBE)
async def live(call: Call) -> Response:
    """Say that the process answers"""
    return json_response({"status": "live"})


@get("/ready", answer=Readiness, statuses=(200, 503), policy=PROBE)
async def ready(call: Call) -> Response:
    """Say whether the server takes new requests

    503 while it is loading, restarting or draining.
    """
    return json_response(*readiness(call.state))


@get("/health", answer=HealthStatus, statuses=(200, 503), policy=PROBE)
async def health(call: Call) -> Response:
    """Say whether the engine serves, draining or not

    503 while it does not.
    """
    return json_response(*engine_health(call.state))


@get("/ping", answer=HealthStatus, statuses=(200, 503), methods=("GET", "HEAD", "POST"), policy=PROBE)
async def ping(call: Call) -> Response:
    """Answer as /health does, for SageMaker"""
    return json_response(*engine_health(call.state))


@get("/version", answer=Version)
async def show_version(call: Call) -> Response:
    """Show the version of the server and how it runs its first model"""
    model = call.state.models.first.admission.model
    engine, fingerprint = (model.info.description, model.fingerprint) if model else (None, None)
    return json_response(Version(version=version(), engine=engine, fingerprint=fingerprint))
