"""The work of the engine process: load the model, then run the loop, until the service closes the wire."""

import contextlib
import importlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from model.batch import Runner
from model.errors import NoriaError
from model.machine.child import resident_bytes
from service.engine.loop import EngineLoop, Message
from service.engine.messages import (
    Abort,
    AdapterLoaded,
    Beat,
    Failed,
    LoadAdapter,
    Loading,
    LoadModel,
    Ready,
    Stop,
    Submit,
    ToEngine,
    UnloadAdapter,
    Wire,
)
from service.engine.prefixes.store import SAVE_SECONDS, PrefixStore, open_store
from service.engine.progress import StallClock
from service.engine.scheduling.budget import PromptBudget
from service.engine.scheduling.scheduler import Scheduler
from service.engine.tape import Tape

log = logging.getLogger("noria.engine")

BEAT_SECONDS = 0.25
LONGEST_TICK_SECONDS = 4 * BEAT_SECONDS
"""A beat that comes later than that was held up together with everything else, by a signal or by the machine."""

CreateRunner = Callable[..., Runner]


def import_callable(name: str) -> CreateRunner:
    """Import what a name means: `"module:callable"`, or `"module:callable:argument"` for the callable's result."""
    module, attribute, *argument = name.split(":")
    found = getattr(importlib.import_module(module), attribute)
    return found(*argument) if argument else found


class Worker:
    """One engine on one wire.

    It calls `on_load` with the name of its model when it begins to load it. It calls `end`, which ends the process at
    once, at a Stop message, when the service closes its end, and when the runner is lost. Its steps go to `tape`.
    """

    def __init__(self, wire: Wire, end: Callable[[], None], on_load: Callable[[str], None] = lambda name: None) -> None:
        self._wire = wire
        self._end = end
        self._on_load = on_load
        self.tape = Tape()
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._runner: Runner | None = None
        self._store: PrefixStore | None = None
        self._reading: set[int] = set()  # adapters that are read again
        self._preparing: dict[int, int] = {}  # ids of sequences, with the lengths of their prompts
        self._clock = StallClock()
        self._n_received = 0
        self._n_prepared = 0
        self._compiles = False  # a grammar, on the preparing thread
        self._preparer = ThreadPoolExecutor(1, "noria-engine-preparer")

    def run(self, runner: str) -> None:
        """Load and serve; returns at a Stop message, or after it has reported that the model cannot be loaded."""
        create = self._import(runner)  # before there are threads: it may fork other ranks
        if create is None:
            return self._wire.release()
        self._preparer.submit(int)  # start the thread now: later the system may allow no more threads
        reader = threading.Thread(target=self._read, name="noria-engine-inbox", daemon=True)
        beat = threading.Thread(target=self._beat, name="noria-engine-beat", daemon=True)
        reader.start()
        beat.start()
        try:
            self._serve(create)
        except OSError as error:
            log.warning("the engine ends: %s", error)
        finally:
            self._ended.set()
            self._wire.close()
            reader.join()
            self._preparer.shutdown(cancel_futures=True)
            beat.join()
            self._wire.release()

    def _import(self, runner: str) -> CreateRunner | None:
        with contextlib.suppress(OSError), self._reporting():
            return import_callable(runner)
        return None

    @contextlib.contextmanager
    def _reporting(self) -> Iterator[None]:
        """Tell the service of an error in the block, after which nothing can be served."""
        try:
            yield
        except NoriaError as error:
            self._wire.send(Failed(str(error)))
        except Exception as error:
            log.exception("the model cannot be loaded")
            self._wire.send(Failed(f"the model cannot be loaded: {type(error).__name__}: {error}"))

    def _serve(self, create: CreateRunner) -> None:
        loaded = None
        with self._reporting():
            loaded = self._load(create)
        if loaded is not None:
            runner, scheduler = loaded
            self._runner = runner
            self._wire.send(Ready(runner.info))
            runner.watch(self._lost)
            preparing = self._preparing.copy
            EngineLoop(runner, scheduler, self._receive, self._wire.send, self._clock, preparing, self.tape).run()
            scheduler.save_pages(SAVE_SECONDS)

    def _lost(self, reason: str) -> None:
        """End the process because one that computes with it is gone. The main thread may wait for it without end."""
        with contextlib.suppress(OSError):
            self._wire.send(Failed(reason))
        self._end()

    def _load(self, create: CreateRunner) -> tuple[Runner, Scheduler] | None:
        """Load at the LoadModel message; returns None at a Stop message."""
        load = self._inbox.get()
        if not isinstance(load, LoadModel):
            return None
        log.debug("loading with %s", load.options)
        self._on_load(load.name)
        runner = create(lambda stage, fraction: self._wire.send(Loading(stage, fraction)), **load.options)
        info = runner.info
        log.debug("the model is loaded: %s", info)
        self._store = open_store(info, runner.pages, wake=lambda: self._inbox.put(lambda scheduler: None))
        return runner, Scheduler(
            info,
            max_sequences=info.max_sequences,
            max_step_tokens=info.max_step_tokens,
            adapter_ready=partial(self._adapter_ready, runner),
            prompts=PromptBudget(info.target_first_token, info.target_inter_token, load.step_timeout),
            store=self._store,
            adapter_name=str if self._store is None else runner.adapters.fingerprint,
        )

    def _receive(self, block: bool) -> list[Message]:
        self._n_received += 1
        messages = [self._inbox.get()] if block else []
        while not self._inbox.empty():
            messages.append(self._inbox.get())
        return messages

    def _read(self) -> None:
        try:
            while (message := self._wire.receive()) is not None:
                if isinstance(message, Stop):
                    return self._close()
                self._dispatch(message)
                del message  # it may have decoded media, and the next one may come late
        finally:
            self._inbox.put(Stop())
            if not self._ended.is_set():
                self._end()

    def _close(self) -> None:
        if self._runner is not None:
            self._runner.close()
        if self._store is not None:  # the loop saves pages before this process ends
            self._inbox.put(Stop())
            self._ended.wait(SAVE_SECONDS)

    def _dispatch(self, message: ToEngine) -> None:
        """Put a message into the inbox, or first give it to the thread that compiles grammars and reads adapters.

        An abort of a sequence that waits for its grammar goes there, too, so that it arrives after the sequence.
        """
        if isinstance(message, Submit) and message.params.grammar is not None:
            self._preparing |= dict.fromkeys(message.ids, len(message.prompt))
            self._preparer.submit(self._prepare, message)
        elif isinstance(message, LoadAdapter):
            self._preparer.submit(self._load_adapter, message)
        elif isinstance(message, UnloadAdapter) or (isinstance(message, Abort) and message.id in self._preparing):
            self._preparer.submit(self._inbox.put, message)
        else:
            self._inbox.put(message)

    def _prepare(self, message: Submit) -> None:
        self._compiles = True
        if self._runner is not None:
            try:
                self._runner.prepare(message.params)
            except Exception:  # the sequence's first step meets the same fault and reports it
                log.exception("sequence %d cannot be prepared", message.id)
        self._compiles = False
        self._inbox.put(message)
        for sequence_id in message.ids:
            self._preparing.pop(sequence_id, None)
        self._n_prepared += 1

    def _load_adapter(self, message: LoadAdapter) -> None:
        problem = ""
        try:
            assert self._runner is not None, "an adapter comes after the model"
            self._runner.adapters.load(message.adapter, message.path)
        except NoriaError as error:
            problem = str(error)
        except Exception as error:
            log.exception("adapter %d cannot be read", message.adapter)
            problem = f"the adapter cannot be read: {type(error).__name__}"
        self._n_prepared += 1
        self._wire.send(AdapterLoaded(message.adapter, problem))

    def _adapter_ready(self, runner: Runner, adapter: int, running: Collection[int]) -> bool:
        """Return whether an adapter is in memory. If not, the preparing thread reads it, beside the `running` ones."""
        if runner.adapters.has(adapter):
            return True
        self._reading.add(adapter)
        self._preparer.submit(self._read_adapter, runner, adapter, running)
        return False

    def _read_adapter(self, runner: Runner, adapter: int, running: Collection[int]) -> None:
        try:
            runner.adapters.read_again(adapter, running)
        except Exception as error:  # the first step meets the same fault and reports it
            log.warning("adapter %d cannot be read: %s", adapter, error)
        self._inbox.put(lambda scheduler: scheduler.note_adapter(adapter))
        self._reading.discard(adapter)
        self._n_prepared += 1

    def _beat(self) -> None:
        last = time.monotonic()
        while not self._ended.wait(BEAT_SECONDS):
            now = time.monotonic()
            passed, last = min(now - last, LONGEST_TICK_SECONDS), now
            try:
                processor = round(time.process_time(), 3)
                self._wire.send(Beat(round(self._stalled(passed), 3), resident_bytes(os.getpid()), processor))
            except OSError:
                return

    def _stalled(self, passed: float) -> float:
        """Return the seconds without progress in the loop, in reads of adapters or pages, or of messages left unread.

        Waiting for the process of grammars does not count: the process has limits of its own.
        """
        waits = self._runner is not None and self._runner.waits_for_grammars
        return self._clock.tick(
            0.0 if waits else passed,
            reading=self._n_prepared if self._reading and not self._compiles else None,
            pages=None if self._store is None else self._store.progress,
            inbox=None if self._inbox.empty() else self._n_received,
        )
