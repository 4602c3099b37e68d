"""The trial of a client's grammar in a child process before the engine sees it: a bad grammar may kill that process."""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from model.grammar.client import GrammarProcess
from model.grammar.process import COMPILE_BYTES, COMPILE_SECONDS
from model.grammar.vocabulary import Vocabulary
from model.machine.helper import ATTEMPTS, First, ProcessLost
from service.errors.errors import InvalidRequest, Unavailable
from service.generation.request import ModelRequest
from service.generation.served import ServedModel

MAX_REMEMBERED = 1024
MAX_TOTAL_CHARS = 2**23
"""The limit for all choices of a request together: each choice goes to the engine with a copy of the grammar."""
TOO_MUCH = f"compiling it takes more than {COMPILE_SECONDS:g} s, {COMPILE_BYTES >> 20} MiB or a deep stack"


class Recent:
    """Texts on the grammars that were used last, by digest. For any thread."""

    def __init__(self) -> None:
        self._texts: OrderedDict[bytes, str] = OrderedDict()
        self._lock = Lock()

    def find(self, digest: bytes) -> str | None:
        with self._lock:
            if digest in self._texts:
                self._texts.move_to_end(digest)
            return self._texts.get(digest)

    def note(self, digest: bytes, text: str) -> None:
        with self._lock:
            self._texts[digest] = text
            self._texts.move_to_end(digest)
            if len(self._texts) > MAX_REMEMBERED:
                self._texts.popitem(last=False)

    def forget(self, digest: bytes) -> None:
        with self._lock:
            self._texts.pop(digest, None)


class Grammars:
    """The checker of grammars: it tries one at a time, and remembers what the compiler said. One per server.

    A thread of its own talks to the process, because the process dies with the thread that starts it.
    """

    def __init__(self, on_restart: Callable[[], None] = lambda: None) -> None:
        self._on_restart = on_restart
        self._problems = Recent()  # "" for a grammar without problem
        self._suspects = Recent()  # grammars with which a process exceeded its limits
        self._thread = ThreadPoolExecutor(1, "noria-grammars")
        self._thread.submit(int)  # start the thread now: later the system may allow no more threads
        self._process: GrammarProcess | None = None
        self._closed = False

    async def check(self, served: ServedModel, request: ModelRequest) -> None:
        """Raise InvalidRequest, naming the field, for a grammar that cannot be used; Unavailable without a process."""
        grammar = request.params.grammar
        if grammar is None:
            return
        names, field = " and ".join(request.grammar_fields), request.grammar_fields[0]
        total = len(grammar) * request.n_choices
        if total > MAX_TOTAL_CHARS:
            message = f"{names} may have at most {MAX_TOTAL_CHARS} characters over all choices together, got {total}"
            raise InvalidRequest(message, param=field)
        problem = self._problems.find(hashlib.sha256(grammar.encode()).digest())
        if problem is None:  # a known grammar does not wait for the trial of another
            problem = await asyncio.get_running_loop().run_in_executor(self._thread, self._try, served, grammar)
        if problem:
            raise InvalidRequest(f"{names} cannot be enforced: {problem}", param=field, code="invalid_grammar")

    async def close(self) -> None:
        """End the process and the thread."""
        self._closed = True
        if self._process is not None:
            self._process.kill()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._end)
        self._thread.shutdown(wait=False)

    def _try(self, served: ServedModel, grammar: str) -> str:
        """The problem of a grammar, "" if none. Only the compiler's word is remembered. Raises Unavailable.

        A process that exceeds its limits, and then a fresh one that does too, say something of the grammar. Any other
        end of a process says nothing.
        """
        digest = hashlib.sha256(grammar.encode()).digest()
        if (known := self._problems.find(digest)) is not None:
            return known
        losses = 0
        while losses < ATTEMPTS and not self._closed:
            suspected = self._suspects.find(digest) is not None
            try:
                problem = self._running(served, fresh=suspected).ask(grammar)
            except ProcessLost as lost:
                if not lost.by_limits:
                    losses += 1
                elif suspected:
                    return TOO_MUCH
                else:
                    self._suspects.note(digest, str(lost))
            else:
                self._suspects.forget(digest)
                self._problems.note(digest, problem)
                return problem
        raise Unavailable("the process that tries grammars was lost; try again", "grammar_unavailable")

    def _running(self, served: ServedModel, *, fresh: bool) -> GrammarProcess:
        """The process; a new one if it has ended, or has to be `fresh`. Raises CannotStart."""
        before = self._process
        if before is not None:
            if not fresh and not before.ended:
                return before
            before.end()
        vocabulary = Vocabulary.of(served.tokenizer, served.defaults.eos_token_ids, served.info.vocab_size)
        self._process = GrammarProcess(First({"vocabulary": vocabulary.to_json()}))
        if before is not None:
            self._on_restart()
        return self._process

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
