"""The trial of a client's grammar in a child process before the engine sees it: a bad grammar may kill that process."""

import hashlib
from collections.abc import Callable

from model.grammar.client import GrammarProcess
from model.grammar.process import COMPILE_BYTES, COMPILE_SECONDS
from model.grammar.vocabulary import Vocabulary
from model.machine.helper import First
from service.errors.errors import InvalidRequest
from service.generation.request import ModelRequest
from service.generation.served import ServedModel
from service.helpers import HelperThread, LimitsExceeded, Recent

MAX_REMEMBERED = 1024
MAX_TOTAL_CHARS = 2**23
"""The limit for all choices of a request together: each choice goes to the engine with a copy of the grammar."""
TOO_MUCH = f"compiling it takes more than {COMPILE_SECONDS:g} s, {COMPILE_BYTES >> 20} MiB or a deep stack"


class Grammars:
    """The checker of grammars: it tries one at a time, and remembers what the compiler said. One per server."""

    def __init__(self, on_restart: Callable[[], None] = lambda: None) -> None:
        self._problems: Recent[bytes, str] = Recent(MAX_REMEMBERED)  # "" for a grammar without problem
        self._suspects: Recent[bytes, str] = Recent(MAX_REMEMBERED)  # grammars that exceeded the limits of a process
        self._helper: HelperThread[GrammarProcess] = HelperThread("tries grammars", "grammar_unavailable", on_restart)

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
            problem = await self._helper.run(lambda: self._try(served, grammar))
        if problem:
            raise InvalidRequest(f"{names} cannot be enforced: {problem}", param=field, code="invalid_grammar")

    async def close(self) -> None:
        """End the process and the thread."""
        await self._helper.close()

    def _try(self, served: ServedModel, grammar: str) -> str:
        """The problem of a grammar, "" if none. Only the compiler's word is remembered. Raises Unavailable.

        A process that exceeds its limits, and then a fresh one that does too, say something of the grammar.
        """
        digest = hashlib.sha256(grammar.encode()).digest()
        if (known := self._problems.find(digest)) is not None:
            return known
        suspected = self._suspects.find(digest) is not None
        try:
            problem = self._helper.use(lambda: _start(served), lambda process: process.ask(grammar), fresh=suspected)
        except LimitsExceeded as error:
            if suspected:
                return TOO_MUCH
            self._suspects.note(digest, str(error))
            return self._try(served, grammar)
        self._suspects.forget(digest)
        self._problems.note(digest, problem)
        return problem


def _start(served: ServedModel) -> GrammarProcess:
    vocabulary = Vocabulary.of(served.tokenizer, served.defaults.eos_token_ids, served.info.vocab_size)
    return GrammarProcess(First({"vocabulary": vocabulary.to_json()}))
