"""The work of all ranks but rank 0: join, load their part, compute each plan that arrives, until rank 0 is gone."""

import contextlib
import gc
import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

from model.checkpoint.resolve import ignore_progress
from model.errors import NoriaError, OptionError
from model.machine.child import name_process
from model.options import RunnerOptions
from model.ranks.links import BEAT_SECONDS, RankLink
from model.ranks.meeting import join
from model.ranks.part import Identity, PartRunner, load_part
from model.ranks.plans import PlanReader
from model.ranks.world import Exit, World
from model.sampling_params import SamplingParams

log = logging.getLogger(__name__)

END_SECONDS = 5.0
"""Time for rank 0 to end the group after an error here."""


def run(world: World, options: Mapping[str, Any] | None) -> NoReturn:
    """Run a rank and end this process. Threads of torch.distributed may hang in their end."""
    name_process(f"noria-rank-{world.rank}")
    gc.freeze()  # of what was imported nothing is garbage
    gc.enable()
    os._exit(follow(world, options))


def follow(world: World, options: Mapping[str, Any] | None) -> int:
    """Run a rank; returns its exit code. `options` are its own, or None if it takes all from rank 0."""
    try:
        joined, theirs = join(world, options)
    except OptionError as error:
        complain(str(error))
        return Exit.REFUSED
    link = joined.links[0]
    logging.basicConfig(level=logging.INFO, handlers=[ToRank0(link)], force=True)  # instead of those of rank 0
    own = {name: value for name, value in (options or theirs).items() if name in ("model", "threads")}
    try:
        Follower(world, link, complains=options is not None).run(RunnerOptions(**{**theirs, **own}), joined.store)
    except NoriaError as error:
        link.send("failed", str(error))
    except Exception as error:
        log.exception("it ends with an error")
        link.send("failed", f"{type(error).__name__}: {error}")
    time.sleep(END_SECONDS)  # rank 0 ends the group, and this process with it
    return Exit.LOST


def complain(problem: str) -> None:
    """Tell the operator of this host why this rank ends."""
    print(f"noria: {problem}", file=sys.stderr, flush=True)


class ToRank0(logging.Handler):
    """Sends the lines of the log to rank 0, which has the only log of the group."""

    def __init__(self, link: RankLink) -> None:
        super().__init__()
        self._link = link
        self.setFormatter(logging.Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(OSError):
            self._link.send("log", [record.levelno, self.format(record)])


class Follower:
    """One rank, connected to rank 0 by `link`. It `complains` on stderr if rank 0 cannot load the model."""

    def __init__(self, world: World, link: RankLink, *, complains: bool) -> None:
        self._world = world
        self._complains = complains
        self._link = link
        self._agreed: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._plans: queue.SimpleQueue[tuple[Any, bytes]] = queue.SimpleQueue()
        self._runner: PartRunner | None = None
        self._preparer = ThreadPoolExecutor(1, "rank-preparer")
        for work in (self._receive, self._beat):
            threading.Thread(target=work, name=f"rank-{work.__name__}", daemon=True).start()

    def run(self, options: RunnerOptions, store: Any) -> NoReturn:
        """Load and compute. The process ends with rank 0, or at its own first error."""
        self._runner = load_part(options, self._world, store, ignore_progress, self._compare, self._agree)
        reader = PlanReader()
        while True:
            output = self._runner.launch(reader.read(*self._plans.get()))()
            if output.slices:
                self._link.send("output", [output.slices, self._runner.grammar_restarts])

    def _compare(self, own: Identity) -> None:
        self._link.send("identity", own)
        self._agreed.get()

    def _agree(self, numbers: Any) -> Any:
        self._link.send("offer", numbers)
        return self._agreed.get()

    def _receive(self) -> None:
        """Take what rank 0 sends. When it is gone this process ends, whatever it does."""
        for kind, body, data in self._link.received():
            if kind == "plan":
                self._plans.put((body, data))
            elif kind == "prepare":
                self._preparer.submit(self._prepare, *body)
            elif kind == "agreed":
                self._agreed.put(body)
            elif kind == "refused":
                if self._complains:
                    complain(body)
                os._exit(Exit.REFUSED)
            elif kind == "goodbye":
                os._exit(Exit.OVER)
        os._exit(Exit.LOST)

    def _reply(self, number: int, value: Any) -> None:
        with contextlib.suppress(OSError):  # rank 0 is gone, which `_receive` sees
            self._link.send("reply", [number, value])

    def _prepare(self, number: int, grammar: str) -> None:
        try:
            if self._runner is not None:
                self._runner.prepare(SamplingParams(grammar=grammar))
        except Exception:  # the sequence's first step meets the same fault and reports it
            log.exception("a grammar cannot be prepared")
        self._reply(number, None)

    def _beat(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                self._link.send("beat")
                time.sleep(BEAT_SECONDS)
