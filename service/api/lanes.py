"""The threads for long work: parsing, tokenizing, writing long answers. Large jobs do not hold up small ones."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

T = TypeVar("T")

SMALL_BYTES = 64 * 2**10
"""Up to this size a body is small: it has a lane of its own, and counts as no large one."""
LARGE_JOBS = 2
"""As many large jobs run at one time. Each may need a gigabyte, and takes the interpreter from the event loop."""


class Lanes:
    """A thread for small jobs and a few for large ones. A tokenizer releases the interpreter while it encodes.

    A job that nobody waits for any more is dropped if it has not begun.
    """

    def __init__(self) -> None:
        self._small, self._large = _pool("noria-small", 1), _pool("noria-large", LARGE_JOBS)

    async def run(self, work: Callable[[], T], size: int) -> T:
        """The result of `work` on a body or an answer of `size` bytes. Raises CancelledError after `close`."""
        pool, job = self._small if size <= SMALL_BYTES else self._large, [work]
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
        for pool in (self._small, self._large):
            pool.shutdown(wait=False, cancel_futures=True)


def _pool(name: str, n_threads: int) -> ThreadPoolExecutor:
    """A pool whose threads run: later the system may allow no more."""
    pool, started = ThreadPoolExecutor(n_threads, name), Barrier(n_threads)
    for _ in range(n_threads):
        pool.submit(started.wait)
    return pool


def _without_panic(job: list[Callable[[], T]]) -> T:
    """The result of the work in `job`. A panic of a library in Rust is no Exception, and becomes one."""
    try:
        return job[0]()
    except Exception:
        raise
    except BaseException as error:
        raise RuntimeError(f"{type(error).__name__}: {error}") from None
