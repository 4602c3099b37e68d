"""The process that tries grammars (`grammars.py`): lines of JSON strings in, lines of complaints out, "" for none.

The first line is the vocabulary. Each further one is a grammar, which may take `CPU_SECONDS` of processor time,
`MEMORY_BYTES` more than the process has and `STACK_BYTES` of stack, less than the engine's threads have; one that wants
more ends the process.
"""

import json
import resource
import signal
import sys
import threading
from pathlib import Path

from model.errors import ParameterError
from model.grammar import Compiler, Vocabulary

CPU_SECONDS = 2.0
MEMORY_BYTES = 64 * 2**20
STACK_BYTES = 2**20


def main() -> None:
    """Serve until the other end closes."""
    compiler = Compiler(Vocabulary.from_json(json.loads(sys.stdin.readline())))
    compiler.compile('start: "a"')  # what only the first one needs is not to be paid by a client's
    _answer("")
    for line in sys.stdin:
        _limit_memory()
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)  # its signal ends the process
        problem = _problem(compiler, json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        _answer(problem)


def _problem(compiler: Compiler, grammar: str) -> str:
    try:
        compiler.compile(grammar)
    except ParameterError as error:
        return str(error)
    return ""


def _limit_memory() -> None:
    """Of addresses, where the system tells how many there are: what is allocated beyond fails."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        used = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _answer(text: str) -> None:
    print(json.dumps(text), flush=True)


if __name__ == "__main__":
    threading.stack_size(STACK_BYTES)
    threading.Thread(target=main).start()
