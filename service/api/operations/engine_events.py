"""`GET /v1/engine/events`."""

import asyncio
from contextlib import ExitStack
from typing import Any

from fastapi import Request
from starlette.responses import Response

from service.access.policy import Policy
from service.access.record import RequestRecord
from service.api.admission import State
from service.api.routes import get
from service.http.sse import EventStream
from service.observe.view.event import EngineEvent

EXAMPLE: dict[str, Any] = {
    "time": 1767225600.25,
    "state": "ready",
    "running": 1,
    "waiting": 0,
    "tokens_per_second": 41.3,
    "prompt_tokens_per_second": 0.0,
    "ttft_seconds": 0.081,
    "queue_seconds": 0.0004,
    "preemptions": 0,
    "prefix": {"queried": 40, "hit": 32},
    "drafts": {"proposed": 0, "accepted": 0},
    "pools": [{"window": None, "page_size": 32, "pages": 256, "held": 2, "shared": 0, "cached": 1, "free": 253}],
    "steps": [{"n": 7, "decode": 1, "prompt": 0, "draft": 0, "sequences": 1, "seconds": 0.0242}],
    "sequences": [
        {
            "id": 3,
            "state": "decode",
            "prompt": 40,
            "computed": 46,
            "generated": 7,
            "cached": 32,
            "reason": None,
            "pages": [{"first": 0, "held": 2, "ids": [4, 9], "shared": []}],
        }
    ],
    "left_out": 0,
}


@get("/v1/engine/events", answer=EngineEvent, answers=(EXAMPLE,), policy=Policy(quiet=True), endless=True)
async def engine_events(request: Request) -> Response:
    """Send the state of the engine, at most ten times a second

    Server-sent events named `engine`. They have no text, no token ids and no names of keys.
    """
    state: State = request.app.state.noria
    record: RequestRecord = request.scope["noria.record"]
    with ExitStack() as stack:
        stack.enter_context(state.feed.listening(record.tenant))
        never = asyncio.get_running_loop().create_future()  # the feed itself ends with the drain
        return EventStream(state.feed.frames(), stack.pop_all(), never, state.feed.framing)
