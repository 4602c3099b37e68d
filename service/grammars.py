"""Trying a client's grammar before the engine sees it, in a process that it may break: a child of this one."""

import asyncio
import hashlib
import json
import logging
import os
import sys
from collections import OrderedDict

from model.grammar import Vocabulary
from service.choice import Order
from service.engine.hosts import HOME
from service.errors import ApiError, InvalidRequest
from service.grammar_child import CPU_SECONDS, MEMORY_BYTES
from service.served import ServedModel

log = logging.getLogger("noria.api")

WALL_SECONDS = 20.0
"""In case the child waits for a processor, or for nothing at all."""
MAX_REMEMBERED = 1024
MAX_TOTAL_CHARS = 2**23
"""Of the grammars of all choices of a request: each goes to the engine with its own."""


class Grammars:
    """Checks grammars, one at a time, and remembers what it found. One a server, on its event loop."""

    def __init__(self) -> None:
        self._found: OrderedDict[bytes, str] = OrderedDict()  # digest of a grammar -> what is wrong, "" if nothing
        self._lock = asyncio.Lock()
        self._child: asyncio.subprocess.Process | None = None

    async def check(self, served: ServedModel, order: Order) -> None:
        """Raise InvalidRequest, naming the field, for a grammar that cannot be used."""
        grammar, field = order.params.grammar, order.grammar_field
        if grammar is None:
            return
        total = len(grammar) * len(order.prompts) * order.n
        if total > MAX_TOTAL_CHARS:
            message = f"{field} takes at most {MAX_TOTAL_CHARS} characters over all choices together, got {total}"
            raise InvalidRequest(message, param=field)
        digest = hashlib.sha256(grammar.encode()).digest()
        async with self._lock:
            if digest not in self._found:
                self._found[digest] = await self._try(served, grammar)
                if len(self._found) > MAX_REMEMBERED:
                    self._found.popitem(last=False)
            self._found.move_to_end(digest)
        if problem := self._found[digest]:
            raise InvalidRequest(f"{field} cannot be enforced: {problem}", param=field, code="invalid_grammar")

    async def close(self) -> None:
        """End the child."""
        child, self._child = self._child, None
        if child is not None and child.returncode is None:
            child.kill()
            await child.wait()

    async def _try(self, served: ServedModel, grammar: str) -> str:
        """What is wrong with a grammar; nothing may be left in the pipes, whatever happens."""
        try:
            if self._child is None:
                await self._start(served)
            return await self._ask(grammar)
        except (TimeoutError, OSError, ValueError):
            log.warning("a grammar of %d characters ended the process that tries grammars", len(grammar))
            await self.close()
            return f"compiling it takes more than {CPU_SECONDS:g} s, {MEMORY_BYTES >> 20} MiB or a deep stack"
        except BaseException:
            await self.close()
            raise

    async def _start(self, served: ServedModel) -> None:
        path = os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH")]))
        self._child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "service.grammar_child"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C in a terminal is not for it
            env={
                **os.environ,
                "PYTHONPATH": path,
                "MALLOC_ARENA_MAX": "1",
            },  # a thread's own arena takes 64 MiB at once
        )
        vocabulary = Vocabulary.of(served.tokenizer, served.defaults.eos_token_ids, served.info.vocab_size)
        try:
            await self._ask(vocabulary.to_json())
        except (TimeoutError, OSError, ValueError) as error:
            raise ApiError("structured output is not available: its compiler cannot be started") from error

    async def _ask(self, text: str) -> str:
        """A line to the child, a line back."""
        assert self._child is not None
        to_child, from_child = self._child.stdin, self._child.stdout
        assert to_child is not None
        assert from_child is not None
        to_child.write(json.dumps(text).encode() + b"\n")
        await to_child.drain()
        answer: str = json.loads(await asyncio.wait_for(from_child.readline(), WALL_SECONDS))
        return answer
