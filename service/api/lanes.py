"""Long work off the event loop: parsing, tokenizing, writing long answers. A job waits for jobs of its size only."""

import asyncio
from bisect import bisect_left
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import orjson

T = TypeVar("T")

SMALL_BYTES = 64 * 2**10
"""Up to this size a body is small: it has a lane of its own, and counts as no large one."""
LANES = (SMALL_BYTES, 2**20)
"""Up to these sizes a job has the first and the second lane; larger ones have the third. A lane runs one job at a time:
to tokenize a text takes about 100 times its size in memory."""


class Lanes:
    """One thread for each lane. A tokenizer releases the interpreter while it encodes.

    A job that nobody waits for any more is dropped if it has not begun.
    """

    def __init__(self) -> None:
        self._pools = [ThreadPoolExecutor(1, f"noria-lane-{n}") for n in range(len(LANES) + 1)]
        for pool in self._pools:
            pool.submit(bool)  # starts the thread: later the system may allow no more

    async def run(self, work: Callable[[], T], size: int) -> T:
        """Return the result of `work` on a body or an answer of `size` bytes. Raises CancelledError after `close`."""
        pool, job = self._pools[bisect_left(LANES, size)], [work]
        try:
            done = asyncio.get_running_loop().run_in_executor(pool, _without_panic, job)
        except RuntimeError:  # the pool is closed
            raise asyncio.CancelledError from None
        try:
            return await done
        finally:
            job.clear()  # the pool keeps a cancelled job until a thread is free, and would keep its body

    def close(self) -> None:
        """Cancel the waiting jobs. The threads end after the running ones."""
        for pool in self._pools:
            pool.shutdown(wait=False, cancel_futures=True)


def _without_panic(job: list[Callable[[], T]]) -> T:
    """Return the result of the work in `job`. A panic of a library in Rust is no Exception, and becomes one."""
    try:
        return job[0]()
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from None


PART = 1024
"""Items of a list that are written at once. orjson holds the interpreter until it has written its whole argument."""


def written(answer: Any) -> bytes:
    """Return the bytes of `orjson.dumps(answer)`."""
    return orjson.dumps(_in_parts(answer))


def _in_parts(value: Any) -> Any:
    """Return the value with finished JSON in place of long lists."""
    if isinstance(value, dict):
        return {key: _in_parts(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) <= PART:
        return [_in_parts(item) for item in value]
    parts = (orjson.dumps(value[start : start + PART])[1:-1] for start in range(0, len(value), PART))
    return orjson.Fragment(b"[" + b",".join(parts) + b"]")
