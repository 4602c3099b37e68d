"""Large stored values: the event loop neither parses nor writes them, and slow readers hold pieces of them."""

import asyncio
import json
import random
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from service.access.record import Policy, RequestRecord
from service.api.call import LARGE_ANSWER, Call, never
from service.api.lanes import Lanes
from service.api.responses.background import END
from service.api.state import Bodies
from service.api.stored.events import StoredEvents
from service.errors.errors import NotStored, Overloaded
from service.state.store import Store
from service.state.stored import Owner, Stored
from service.state.tables import EVENTS_PIECE, MEMORY, Tables
from tests.service.api.background import LONG, PATH, ended, events, killed, state
from tests.service.live import Live, hurried, running

LARGE = 2**11
MODULES = (
    *("api.lanes", "api.routes", "api.responses.background", "api.responses.creation", "api.responses.history"),
    *("api.stored.conversations", "api.stored.lists", "api.stored.requested"),
    "api.stored.responses",
)
TEXT = "u" * (LARGE + 1000)
INCLUDED = "?include=message.output_text.logprobs"


class Watched:
    """orjson as these modules see it. `on_loop` are the bytes of large values that the event loop read or wrote."""

    Fragment, JSONDecodeError = orjson.Fragment, orjson.JSONDecodeError

    def __init__(self) -> None:
        self.on_loop: list[int] = []
        self.n_large = 0

    def loads(self, text: bytes) -> Any:
        self._note(len(text))
        return orjson.loads(text)

    def dumps(self, value: Any) -> bytes:
        text = orjson.dumps(value)
        self._note(len(text))
        return text

    def _note(self, n_bytes: int) -> None:
        if n_bytes > LARGE:
            self.n_large += 1
            if asyncio._get_running_loop() is not None:
                self.on_loop.append(n_bytes)


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    found = Watched()
    for module in MODULES:
        monkeypatch.setattr(f"service.{module}.orjson", found)
    yield found
    assert found.n_large
    assert found.on_loop == []


def got(live: Live, path: str, method: str = "GET", **body: Any) -> dict[str, Any]:
    answer = live.http.request(method, path, **({"json": body} if body else {}))
    assert answer.status_code == 200, answer.text[:500]
    return dict(answer.json())


def test_responses_are_stored_and_shown_by_threads(watched: Watched) -> None:
    """Their input, and their log probabilities, which are not even read unless they are included."""
    with running(max_model_len=8000) as live:
        asked = {"model": "fake", "input": TEXT, "max_output_tokens": 300, "top_logprobs": 20}
        made = got(live, PATH, "POST", **asked, include=["message.output_text.logprobs"])
        assert len(json.dumps(made["output"])) > 4 * LARGE
        plain = got(live, f"{PATH}/{made['id']}")
        assert plain["output"][0]["content"][0]["logprobs"] == []
        assert plain["output"][0]["content"][0]["text"] == made["output"][0]["content"][0]["text"]
        assert got(live, f"{PATH}/{made['id']}{INCLUDED}")["output"] == made["output"]
        (item,) = got(live, f"{PATH}/{made['id']}/input_items")["data"]
        assert item["content"][0]["text"] == TEXT
        continued = got(live, PATH, "POST", model="fake", previous_response_id=made["id"], max_output_tokens=1)
        assert continued["usage"]["input_tokens"] > len(TEXT)


def test_conversations_are_stored_and_shown_by_threads(watched: Watched) -> None:
    with running(max_model_len=8000) as live:
        path = "/v1/conversations"
        items = [{"role": "user", "content": TEXT}]
        path += f"/{got(live, path, 'POST', items=items)['id']}"
        assert got(live, f"{path}/items", "POST", items=items)["data"][0]["content"][0]["text"] == TEXT
        first, second = got(live, f"{path}/items")["data"]
        assert got(live, f"{path}/items/{first['id']}") == first
        got(live, f"{path}/items/{second['id']}", "DELETE")
        assert got(live, f"{path}/items")["data"] == [first]
        got(live, path, "POST", metadata={"a": "b"})


def test_what_runs_in_the_background_is_stored_by_threads(watched: Watched, tmp_path: Path) -> None:
    path, copy = tmp_path / "responses.db", tmp_path / "copy.db"
    options = {"model": "slow", "max_model_len": 8000}
    asked = LONG | {"input": TEXT, "max_output_tokens": 5, "instructions": TEXT}
    with running(**options, responses_store=str(path)) as live:
        id = live.post(PATH, asked).json()["id"]
        killed(live, path, copy)
        with hurried():
            whole = ended(live, id)
        assert events(live, id)[-1]["response"]["output"] == whole["output"]
        late = live.post(PATH, asked).json()["id"]
        assert got(live, f"{PATH}/{late}/cancel", "POST")["status"] == "cancelled"
    with running(**options, responses_store=str(copy)) as live:
        assert state(live, id)["status"] == "failed"


# Stored streams


class Client:
    """A client that reads what is written, and after that calls `then`."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.pieces: list[bytes] = []
        self._then = then

    async def write(self, frames: list[bytes]) -> None:
        self.pieces.append(b"".join(frames))
        self._then()


def requested(tables: Tables, client: Client) -> Any:
    """A request for a stored response, as handlers make it."""
    state = SimpleNamespace(work=Lanes())
    call = SimpleNamespace(state=state, sink=client, open=lambda framing: None)
    store, missing = Store(tables, enabled=True), NotStored("response", "resp_1")
    return SimpleNamespace(call=call, store=store, owner=Owner("a"), id="resp_1", missing=missing)


@pytest.mark.parametrize("random_bytes", [False, True], ids=["a thousand to one", "hardly compressed"])
def test_a_stored_stream_is_read_in_pieces(random_bytes: bool) -> None:
    """Whatever its events compress to. A reader never holds more than two pieces."""
    source = random.Random(0)
    texts = [source.randbytes(400).hex() if random_bytes else "a" * 20_000 for _ in range(500)]
    whole = [b"event: x\ndata: %d %b\n\n" % (number, text.encode()) for number, text in enumerate(texts)]
    tables = Tables(MEMORY, 10**9, 1e9)
    tables.put(Owner("a"), Stored("resp_1", b"{}", events=zlib.compress(b"".join(whole), 1)))

    async def main() -> None:
        for after in (-1, 0, 250, 498, 499, 600):
            client = Client()
            await StoredEvents(requested(tables, client), after).write()
            assert b"".join(client.pieces) == b"".join(whole[after + 1 :])
            assert max(map(len, client.pieces), default=0) <= 2 * EVENTS_PIECE
        client = Client(lambda: tables.delete(Owner("a"), "resp_1"))
        with pytest.raises(NotStored):
            await StoredEvents(requested(tables, client), -1).write()
        assert len(client.pieces) >= 1

    asyncio.run(main())


def test_the_error_of_a_stored_stream_has_the_next_number() -> None:
    """Its response is deleted while a client reads."""
    whole = [b"data: %d\n\n" % number for number in range(3)]
    tables = Tables(MEMORY, 10**9, 1e9)
    tables.put(Owner("a"), Stored("resp_1", b"{}", events=zlib.compress(b"".join(whole), 1)))

    async def main() -> None:
        client = Client()
        request = requested(tables, client)
        framings: list[Any] = []
        request.call.open = framings.append
        await StoredEvents(request, 0).write()
        assert b"".join(client.pieces) == END.join(b"data: %d" % number for number in (1, 2)) + END
        assert framings[0].failure(NotStored("response", "resp_1"))["sequence_number"] == 3

    asyncio.run(main())


# The budget of large bodies


def test_large_answers_count_as_large_bodies_until_clients_have_them() -> None:
    """One that is stored is refused where there is no space; one that was computed counts, and is not lost."""

    state = SimpleNamespace(bodies=Bodies(LARGE_ANSWER))
    app = SimpleNamespace(state=SimpleNamespace(noria=state))

    async def send(message: object) -> None: ...

    def answering(n_bytes: int, *, computed: bool) -> Call:
        record = RequestRecord("1", "GET", "/", None, Policy(), client="a")
        call = Call({"type": "http", "app": app, "noria.record": record}, never, send)
        call.respond(b"x" * n_bytes, computed=computed)
        return call

    calls = [answering(4 * LARGE_ANSWER, computed=False) for _ in range(4)]
    assert state.bodies.held.total == 16 * LARGE_ANSWER
    with pytest.raises(Overloaded):
        answering(2 * LARGE_ANSWER, computed=False)
    calls += [answering(LARGE_ANSWER, computed=False), answering(2 * LARGE_ANSWER, computed=True)]
    assert state.bodies.held.total == 18 * LARGE_ANSWER
    for call in calls:
        with call:
            pass
    assert state.bodies.held.total == 0
