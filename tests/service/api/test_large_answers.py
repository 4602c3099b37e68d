"""Large stored values: the event loop neither parses nor writes them, and slow readers hold pieces of them."""

import asyncio
import json
import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from service.api.lanes import Lanes
from service.api.large import LARGE_ANSWER, LargeAnswer
from service.api.responses.background import END
from service.api.state import Bodies
from service.api.stored.events import StoredEvents
from service.errors.errors import NotStored, Overloaded
from service.http.sse import EventStream
from service.state.store import Store
from service.state.stored import Owner, Stored
from service.state.tables import EVENTS_PIECE, MEMORY, Tables
from tests.service.api.background import LONG, PATH, ended, events, killed, state
from tests.service.live import Live, hurried, running
from tests.waiting import eventually

LARGE = 2**11
MODULES = (
    *("api.lanes", "api.routes", "api.responses.background", "api.responses.creation", "api.responses.history"),
    *("api.responses.restart", "api.stored.conversations", "api.stored.lists", "api.stored.requested"),
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


def test_what_runs_in_the_background_is_stored_and_begun_again_by_threads(watched: Watched, tmp_path: Path) -> None:
    path, copy = tmp_path / "responses.db", tmp_path / "copy.db"
    options = {"model": "slow", "max_model_len": 8000, "finish_after_restart": True}
    asked = LONG | {"input": TEXT, "max_output_tokens": 5, "instructions": TEXT}
    with running(**options, responses_store=str(path)) as live:
        id = live.post(PATH, asked).json()["id"]
        killed(live, path, copy)
        with hurried():
            whole = ended(live, id)
        late = live.post(PATH, asked).json()["id"]
        assert got(live, f"{PATH}/{late}/cancel", "POST")["status"] == "cancelled"
    with running(**options, responses_store=str(copy)) as live, hurried():
        eventually(lambda: state(live, id)["status"] == whole["status"], "it has ended again")
        assert state(live, id)["output"] == whole["output"]
        assert events(live, id)[-1]["response"]["output"] == whole["output"]


# Stored streams


def requested(tables: Tables, id: str) -> Any:
    """A request for a stored response, as handlers make it."""
    state = SimpleNamespace(work=Lanes(), drain=SimpleNamespace(expired=asyncio.get_running_loop().create_future()))
    store = Store(tables, enabled=True)
    return SimpleNamespace(state=state, store=store, owner=Owner("a"), id=id, missing=NotStored("response", id))


async def pieces(stream: EventStream) -> list[bytes]:
    return [b"".join(frames) async for frames in stream._frames]


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
            found = await pieces(await StoredEvents(requested(tables, "resp_1"), after).response())
            assert b"".join(found) == b"".join(whole[after + 1 :])
            assert max(map(len, found), default=0) <= 2 * EVENTS_PIECE
        stored = StoredEvents(requested(tables, "resp_1"), -1)
        frames = (await stored.response())._frames
        await anext(aiter(frames))
        tables.delete(Owner("a"), "resp_1")
        with pytest.raises(NotStored):
            async for _ in frames:
                pass

    asyncio.run(main())


def test_the_error_of_a_stored_stream_has_the_next_number() -> None:
    """Its response is deleted while a client reads."""
    whole = [b"data: %d\n\n" % number for number in range(3)]
    tables = Tables(MEMORY, 10**9, 1e9)
    tables.put(Owner("a"), Stored("resp_1", b"{}", events=zlib.compress(b"".join(whole), 1)))

    async def main() -> None:
        stored = StoredEvents(requested(tables, "resp_1"), 0)
        frames = aiter((await stored.response())._frames)
        assert await anext(frames) == [END.join(b"data: %d" % number for number in (1, 2)) + END]
        assert stored._framing.failure(NotStored("response", "resp_1"))["sequence_number"] == 3

    asyncio.run(main())


# The budget of large bodies


def test_large_answers_count_as_large_bodies_until_clients_have_them() -> None:
    """One that is stored is refused where there is no space; one that was computed counts, and is not lost."""

    async def main() -> None:
        state = SimpleNamespace(bodies=Bodies(LARGE_ANSWER))
        record = SimpleNamespace(sender="a")
        scope: Any = {
            "type": "http",
            "app": SimpleNamespace(state=SimpleNamespace(noria=state)),
            "noria.record": record,
        }
        reads = asyncio.Event()

        async def send(message: object) -> None:
            await reads.wait()

        def sending(n_bytes: int, *, computed: bool) -> asyncio.Task[None]:
            answer = LargeAnswer(b"x" * n_bytes, computed=computed)
            return asyncio.create_task(answer(scope, None, send))  # type: ignore[arg-type]

        sent = [sending(4 * LARGE_ANSWER, computed=False) for _ in range(4)]
        await asyncio.sleep(0)
        assert state.bodies.held.total == 16 * LARGE_ANSWER
        with pytest.raises(Overloaded):
            await sending(2 * LARGE_ANSWER, computed=False)
        sent += [sending(LARGE_ANSWER, computed=False), sending(2 * LARGE_ANSWER, computed=True)]
        await asyncio.sleep(0)
        assert state.bodies.held.total == 18 * LARGE_ANSWER
        reads.set()
        await asyncio.gather(*sent)
        assert state.bodies.held.total == 0

    asyncio.run(main())
