"""What is left of a model after its unload, and of all at the end of the server."""

import asyncio
import logging
import signal
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.service.hosting.serving import LATE, count, posted, serving
from tests.service.live import Live, begun, hurried
from tests.waiting import PATIENCE, eventually

COMPLETIONS = "/v1/completions"
LOAD = "/v1/models/load"
UNLOAD = "/v1/models/unload"


def test_loads_and_unloads_leave_nothing_behind(tmp_path: Path) -> None:
    def there(live: Live) -> tuple[int, int, int]:
        """Tasks of the event loop, threads, and descriptors of this process."""
        found: list[int] = []
        counted = threading.Event()
        loop = live.state.drain.expired.get_loop()

        def look() -> None:
            found.append(len(asyncio.all_tasks(loop)))
            counted.set()

        loop.call_soon_threadsafe(look)
        assert counted.wait(PATIENCE)
        return found[0], threading.active_count(), len([*Path("/proc/self/fd").iterdir()])

    with serving(tmp_path, {"a": {}, "b": LATE}) as live:

        def round() -> None:
            assert live.post(LOAD, {"model": "b"}).status_code == 200
            assert live.post(UNLOAD, {"model": "b"}).status_code == 200

        round()
        before = there(live)
        for _ in range(10):
            round()
        eventually(lambda: all(now <= then for now, then in zip(there(live), before, strict=True)), "nothing is left")
        assert count(live, "loads", model="b", outcome="ok") == 11


def test_a_server_that_stops_while_models_load_and_wait_ends_in_peace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    entries = {"c": {"source": "slow"}, "a": {"source": "large", **LATE}, "b": LATE}
    ending = ExitStack()
    with ending, caplog.at_level(logging.ERROR), serving(tmp_path, entries, memory_budget=2, drain_timeout=0.1) as live:
        with ExitStack() as stack:
            stack.enter_context(begun(live, model="c", max_tokens=3000))
            asked = [stack.enter_context(posted(live, COMPLETIONS, {"model": "a", "prompt": "hi"}))]
            eventually(lambda: live.model("a").reserved, "it has memory, and loads")
            asked.append(stack.enter_context(posted(live, COMPLETIONS, {"model": "b", "prompt": "hi"})))
            eventually(lambda: live.model("b").waits_for_memory, "it waits for memory, while the others load and serve")
            live.state.drain.expired.get_loop().call_soon_threadsafe(live.server.handle_exit, signal.SIGTERM, None)
            replies = [future.result(PATIENCE) for future in asked]
            assert [reply.json()["error"]["code"] for reply in replies] == ["shutting_down"] * 2
        ending.enter_context(hurried())  # a thread in a load would finish that first
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]
