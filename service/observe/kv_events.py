"""KV events on vLLM's wire, for routers that follow what each replica has cached: ZeroMQ, in MessagePack.

    PUB       topic, sequence number, batch
    ROUTER    a client sends the first number that it misses, and gets number and batch of each that is still here
    batch     [time, [event...], 0]

It needs the packages of the extra `events`.
"""

import logging
import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from model.batch import RunnerInfo
from model.errors import OptionError
from service.engine.messages import PageChange

log = logging.getLogger("noria.events")
REMEMBERED = 10_000
"""Batches that a client may ask for again."""
END = (-1).to_bytes(8, "big", signed=True)
"""The number that ends the answer to such a client."""
POLL_SECONDS = 0.05
CLEARED = ["AllBlocksCleared"]


class KvEvents:
    """The publisher of a model's events. One thread has the sockets. Raises OptionError for an address that is taken.

    `replay` is the address for those that have missed some; None: there is none.
    """

    def __init__(self, address: str, replay: str | None, model: str) -> None:
        self._topic = f"kv@{socket.gethostname()}@{model}".encode()
        self._medium = "CPU"
        self._windows: tuple[int | None, ...] = ()
        self._page_size = 0
        self._events: queue.SimpleQueue[list[Any] | None] = queue.SimpleQueue()
        self._past: deque[tuple[bytes, bytes]] = deque(maxlen=REMEMBERED)
        self._context = zmq.Context()
        self._pub, self._router = self._bound(zmq.PUB, address), self._bound(zmq.ROUTER, replay)
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def _bound(self, kind: int, address: str | None) -> "zmq.Socket[bytes] | None":
        if address is None:
            return None
        bound = self._context.socket(kind)
        bound.setsockopt(zmq.LINGER, 0)
        try:
            bound.bind(address)
        except zmq.ZMQError as error:
            raise OptionError(f"--kv-events {address}: cannot be bound ({error})") from error
        return bound

    def publish(self, changes: Sequence[PageChange] | None, info: RunnerInfo) -> None:
        """Publish changes of pages, or without any that an engine with an empty cache begins."""
        if changes is None:
            self._medium = "CPU" if info.description.get("device") == "cpu" else "GPU"
            self._windows, self._page_size = tuple(pool.window for pool in info.pools), info.page_size
        self._events.put([CLEARED] if changes is None else [self._event(change) for change in changes])

    def close(self) -> None:
        self._events.put(None)
        self._thread.join()

    def _event(self, change: PageChange) -> list[Any]:
        """Return the fields of vLLM's struct. The extra keys hold salt and media, and never whose page it is."""
        name = bytes.fromhex(change.name)
        if not change.tokens:
            return ["BlockRemoved", [name], self._medium, change.pool]
        window, parent = self._windows[change.pool], bytes.fromhex(change.parent) or None
        keys = (*change.media, *([change.salt] if change.salt and parent is None else []))
        about = [change.adapter or None, self._medium, None, [keys or None], change.pool]
        kind = "full_attention" if window is None else "sliding_window"
        return ["BlockStored", [name], parent, change.tokens, self._page_size, *about, kind, window]

    def _run(self) -> None:
        number = 0
        while True:
            try:
                events = self._events.get(timeout=POLL_SECONDS)
            except queue.Empty:
                events = []
            if events is None:
                self._context.destroy()
                return
            if events:
                batch = msgspec.msgpack.encode([time.time(), events, 0])
                self._past.append((number.to_bytes(8, "big"), batch))
                assert self._pub is not None, "it has an address"
                self._pub.send_multipart((self._topic, *self._past[-1]))
                number += 1
            if self._router is not None:
                self._replay(self._router)

    def _replay(self, router: "zmq.Socket[bytes]") -> None:
        """Answer those who have missed something. A client that reads nothing loses its answer."""
        while router.poll(0):
            client, *_, first = router.recv_multipart()
            if len(first) != len(END):
                log.warning("a client of KV events asks for a number of %d bytes: it must have 8", len(first))
                continue
            for number, batch in [item for item in self._past if item[0] >= first]:
                router.send_multipart((client, b"", number, batch))
            router.send_multipart((client, b"", END, b""))
