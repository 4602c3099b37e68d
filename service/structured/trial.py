"""The trial of a client's grammar in a child process before the engine sees it: a bad grammar may kill that process."""

import asyncio
import hashlib
import logging
import socket
from collections import OrderedDict
from typing import NamedTuple

from model.grammar.compiler import Vocabulary
from model.grammar.process import COMPILE_BYTES, COMPILE_SECONDS
from model.machine import frames
from model.machine.child import python_command
from service.generation.order import Order
from service.generation.served import ServedModel
from service.http.errors import ApiError, InvalidRequest

log = logging.getLogger("noria.api")

WALL_SECONDS = 20.0
"""The time limit for an answer of the child process, whatever it waits for."""
MAX_REMEMBERED = 1024
MAX_TOTAL_CHARS = 2**23
"""The limit for all choices of a request together: each choice goes to the engine with a copy of the grammar."""


class TrialProcess(NamedTuple):
    """The child process (`model/grammar/process.py`) and its socket."""

    process: asyncio.subprocess.Process
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, data: object) -> str:
        """Send a frame and return the answer. Raises OSError, EOFError or TimeoutError."""
        self.writer.write(frames.pack(data))
        await self.writer.drain()
        async with asyncio.timeout(WALL_SECONDS):
            answer, _ = await frames.read(self.reader)
        return str(answer)


class Grammars:
    """The checker of grammars: it tries one at a time and remembers the results. One per server, on its event loop."""

    def __init__(self) -> None:
        self._problems: OrderedDict[bytes, str] = OrderedDict()  # digest of a grammar -> its problem, "" if none
        self._lock = asyncio.Lock()
        self._child: TrialProcess | None = None

    async def check(self, served: ServedModel, order: Order) -> None:
        """Raise InvalidRequest, naming the field, for a grammar that cannot be used."""
        grammar = order.params.grammar
        if grammar is None:
            return
        names, field = " and ".join(order.grammar_fields), order.grammar_fields[0]
        total = len(grammar) * len(order.prompts) * order.n
        if total > MAX_TOTAL_CHARS:
            message = f"{names} may have at most {MAX_TOTAL_CHARS} characters over all choices together, got {total}"
            raise InvalidRequest(message, param=field)
        digest = hashlib.sha256(grammar.encode()).digest()
        if digest not in self._problems:  # a known grammar does not wait for the trial of another
            async with self._lock:
                if digest not in self._problems:
                    self._problems[digest] = await self._try(served, grammar)
        self._problems.move_to_end(digest)
        if len(self._problems) > MAX_REMEMBERED:
            self._problems.popitem(last=False)
        if problem := self._problems[digest]:
            raise InvalidRequest(f"{names} cannot be enforced: {problem}", param=field, code="invalid_grammar")

    async def close(self) -> None:
        """Kill the child process."""
        child, self._child = self._child, None
        if child is not None:
            if child.process.returncode is None:
                child.process.kill()
            await child.process.wait()
            child.writer.close()

    async def _try(self, served: ServedModel, grammar: str) -> str:
        """The problem of a grammar, "" if none. After an error the child ends: its answer could still arrive."""
        try:
            self._child = self._child or await self._start(served)
            return await self._child.ask(grammar)
        except (TimeoutError, OSError, EOFError):
            log.warning("a grammar of %d characters ended the process that tries grammars", len(grammar))
            await self.close()
            return f"compiling it takes more than {COMPILE_SECONDS:g} s, {COMPILE_BYTES >> 20} MiB or a deep stack"
        except BaseException:
            await self.close()
            raise

    async def _start(self, served: ServedModel) -> TrialProcess:
        ours, theirs = socket.socketpair()
        with theirs:
            command, options = python_command(
                "model.grammar.process",
                sockets=[theirs],
                environment={"MALLOC_ARENA_MAX": "1"},  # a thread's arena takes 64 MiB at once
                stderr=asyncio.subprocess.DEVNULL,
            )
            process = await asyncio.create_subprocess_exec(*command, **options)
        reader, writer = await asyncio.open_connection(sock=ours)
        self._child = TrialProcess(process, reader, writer)
        vocabulary = Vocabulary.of(served.tokenizer, served.defaults.eos_token_ids, served.info.vocab_size)
        try:
            await self._child.ask({"vocabulary": vocabulary.to_json()})
        except (TimeoutError, OSError, EOFError) as error:
            raise ApiError("structured output is not available: its compiler cannot be started") from error
        return self._child
