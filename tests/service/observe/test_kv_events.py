"""KV events as a router reads them: vLLM's structs, its topic, its numbers, and its way to ask again."""

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.server import free_port
from tests.service.live import Live, running
from tests.waiting import PATIENCE, eventually

zmq = pytest.importorskip("zmq", reason="the extra events is not installed")
msgspec = pytest.importorskip("msgspec", reason="the extra events is not installed")


class KVCacheEvent(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):  # type: ignore[misc]
    """vLLM's base of events, in vllm/distributed/kv_events.py."""


class BlockStored(KVCacheEvent):
    block_hashes: list[bytes]
    parent_block_hash: bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(KVCacheEvent):
    block_hashes: list[bytes]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(KVCacheEvent):
    pass


class KVEventBatch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):  # type: ignore[misc]
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class Router:
    """A subscriber with what it knows: the pages by group and hash."""

    def __init__(self) -> None:
        self.pages: dict[tuple[int | None, bytes], BlockStored] = {}
        self.numbers: list[int] = []
        self.cleared = 0

    def take(self, number: bytes, batch: bytes) -> None:
        self.numbers.append(int.from_bytes(number, "big"))
        for event in msgspec.msgpack.Decoder(KVEventBatch).decode(batch).events:
            if isinstance(event, BlockStored):
                self.pages[event.group_idx, event.block_hashes[0]] = event
            elif isinstance(event, BlockRemoved):
                self.pages.pop((event.group_idx, event.block_hashes[0]), None)
            else:
                self.cleared += 1
                self.pages.clear()

    def chain(self, group: int, last: BlockStored) -> list[int]:
        """All tokens up to the end of a page."""
        before = [] if last.parent_block_hash is None else self.chain(group, self.pages[group, last.parent_block_hash])
        return [*before, *last.token_ids]


@pytest.fixture
def ports() -> tuple[int, int]:
    return free_port(), free_port()


@pytest.fixture
def live(ports: tuple[int, int]) -> Iterator[Live]:
    address, replay = (f"tcp://127.0.0.1:{port}" for port in ports)
    with running(kv_events=address, kv_events_replay=replay, api_keys=("secret",)) as started:
        started.http.headers["authorization"] = "Bearer secret"
        yield started


def test_a_router_knows_what_is_cached(live: Live, ports: tuple[int, int]) -> None:
    router, info = Router(), live.engine.info
    assert info is not None
    with zmq.Context() as context, context.socket(zmq.SUB) as socket:
        socket.connect(f"tcp://127.0.0.1:{ports[0]}")
        socket.setsockopt(zmq.SUBSCRIBE, b"kv@")

        def heard() -> int:
            while socket.poll(50):
                topic, number, batch = socket.recv_multipart()
                assert (topic[:3], topic[-5:]) == (b"kv@", b"@fake")
                router.take(number, batch)
            return len(router.pages)

        def hears(n: int = 0) -> bool:
            live.complete(prompt=f"{n} " * 30, max_tokens=1)
            return heard() > 0

        eventually(hears, "the subscription has begun")
        live.complete(prompt="u" * info.page_size * 3, max_tokens=1, cache_salt="pepper")
        salted = lambda: [page for page in router.pages.values() if page.extra_keys == [("pepper",)]]  # noqa: E731
        eventually(lambda: heard() and len(salted()) == len(info.pools), "the first page of each group came")
        last = [page for page in router.pages.values() if page.token_ids == list(b"u" * info.page_size)]
        chains = {bytes(router.chain(page.group_idx or 0, page)) for page in last}
        assert b"u" * info.page_size * 3 in chains
        windows = {page.group_idx: page.kv_cache_spec_sliding_window for page in last}
        assert windows == {index: pool.window for index, pool in enumerate(info.pools)}
        assert {page.block_size for page in last} == {info.page_size}
        assert router.numbers == list(range(router.numbers[0], router.numbers[-1] + 1))
        late = replayed(ports[1], 0)
        assert (late.cleared, late.numbers[0]) == (1, 0)
        assert router.pages.keys() <= late.pages.keys()
        assert b"secret" not in repr(late.pages).encode()
        live.hosts[0].kill()
        eventually(lambda: (heard(), router.cleared)[1] == 1, "another engine begins with nothing")
        assert not router.pages


def test_what_is_evicted_is_told(live: Live, ports: tuple[int, int]) -> None:
    for n in range(300):
        live.complete(prompt=hashlib.sha256(str(n).encode()).hexdigest() * 5, max_tokens=1)
    eventually(lambda: live.engine.stats.running == 0, "it is idle")
    known = replayed(ports[1], 0)
    for index, pool in enumerate(live.engine.stats.pools):
        n_known = sum(group == index for group, _ in known.pages)
        assert 0 < n_known <= pool.held + pool.cached


def replayed(port: int, first: int) -> Router:
    """What a router knows that asks for all events from a number on."""
    found = Router()
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.connect(f"tcp://127.0.0.1:{port}")
        socket.send_multipart((b"", first.to_bytes(8, "big")))
        while socket.poll(PATIENCE * 1000):
            _, number, batch = socket.recv_multipart()
            if int.from_bytes(number, "big", signed=True) == -1:
                return found
            found.take(number, batch)
    raise AssertionError("the answer has no end")
