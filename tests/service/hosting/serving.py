"""A server of several fake models, of which each takes as many bytes as a test says."""

import json
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from model.errors import MemoryLack
from service.hosting.memory import Need
from service.settings import Settings
from tests.service.live import Live, answer, remaining, running
from tests.waiting import PATIENCE

Entries = Mapping[str, Mapping[str, Any]]
LATE: Mapping[str, Any] = {"load": "first-request"}


def toml(entries: Entries) -> str:
    """The content of a file of --models. Names are keys; the source is the fake model unless an entry says more."""
    tables = [{"name": name, "source": "fake", **fields} for name, fields in entries.items()]
    return "".join(
        "\n".join(["[[models]]", *(f"{key} = {json.dumps(value)}" for key, value in fields.items()), ""])
        for fields in tables
    )


@contextmanager
def serving(folder: Path, entries: Entries, sizes: Mapping[str, int] | None = None, **options: Any) -> Iterator[Live]:
    """Serve these models. A model takes its `sizes`, or a byte; one larger than the budget has no plan."""

    def need(settings: Settings, budget: int, n_models: int) -> Need:
        size = (sizes or {}).get(settings.names[0], 1)
        if size > budget:
            raise MemoryLack(f"{settings.names[0]} needs {size}, --memory-budget is {budget}")
        return Need(size, 1)

    path = folder / "models.toml"
    path.write_text(toml(entries))
    with running(models=path, need=need, **options) as live:
        yield live


def states(live: Live, **headers: str) -> dict[str, str]:
    """The state of each model by its names, as GET /v1/models has it."""
    cards = live.http.get("/v1/models", headers=headers).json()["data"]
    return {card["id"]: card["state"] for card in cards}


def said(live: Live, model: str, prompt: str = "hi", n: int = 5) -> str:
    """The answer of a model."""
    return live.complete(model=model, prompt=prompt, max_tokens=n)["choices"][0]["text"]


def count(live: Live, name: str, **labels: str) -> float:
    return live.metric(f"noria_model_{name}_total", **labels)


@contextmanager
def posted(live: Live, path: str, body: Mapping[str, Any] | None, **headers: str) -> Iterator["Future[httpx.Response]"]:
    """A request that a thread sends, a GET without a body. At the end of the block it must have been answered."""
    future: Future[httpx.Response] = Future()

    def send() -> None:
        try:
            with httpx.Client(base_url=live.url, timeout=PATIENCE, headers=live.http.headers) as http:
                method = "GET" if body is None else "POST"
                future.set_result(http.request(method, path, json=body, headers=headers))
        except Exception as error:
            future.set_exception(error)

    thread = threading.Thread(target=send)
    thread.start()
    yield future
    thread.join(PATIENCE)
    assert not thread.is_alive(), f"no answer from {path}"


def ends_whole(lines: Iterator[str], n: int) -> bool:
    """Whether a stream of LONG that has begun ends as the whole answer does."""
    *chunks, done = remaining(lines)
    text = "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks)
    return done == "[DONE]" and len(text) > n // 2 and answer("long", n).endswith(text)


def facts(live: Live, request_id: str) -> dict[str, Any]:
    return live.http.get(f"/v1/requests/{request_id}").json()


def waits(live: Live, request_id: str, reason: str) -> bool:
    found = facts(live, request_id)
    return (found.get("state"), found.get("reason"), bool(found.get("model"))) == ("preparing", reason, True)
