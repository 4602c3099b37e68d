"""The process that compiles and follows grammars. If a grammar hangs or crashes it, nothing else is harmed.

    python -m model.grammar.process TRY [FOLLOW]

The arguments are file descriptors of sockets, which carry frames (`model/machine/frames.py`). The first frame on TRY is
the vocabulary (`Vocabulary`, or the directory of a model). Each further frame is a grammar to compile; the answer is
what is wrong with it. A frame on FOLLOW is a step: for each sequence its number, its grammar if it is new, its new
tokens and a draft. The answer for each sequence is the result of `Follower.masks`.
The process ends when a socket closes. It ends itself when a task takes too much time.
"""

import contextlib
import resource
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from model.checkpoint.generation_config import read_generation
from model.errors import one_line
from model.grammar.compiler import CompiledGrammars, Compiler, Vocabulary
from model.grammar.follower import Follower
from model.machine.frames import receive, send
from model.tokenizers.load import load_tokenizer

COMPILE_SECONDS = 2.0
MASK_SECONDS = 0.5
"""Limits of processor time: for a grammar, and for one sequence's masks in a step, which usually take about 0.1 ms."""
COMPILE_BYTES = 64 * 2**20
FOLLOW_BYTES = 4 * 2**30
STACK_BYTES = 2**20
"""Stack of the thread that compiles, the same in every process: a grammar that passed once passes again."""
TRIAL_TOKENS = 32


class Timer:
    """A limit of processor time, the sum of those of the running tasks. The process ends when it is exceeded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds = 0.0

    @contextlib.contextmanager
    def task(self, seconds: float) -> Iterator[None]:
        self._add(seconds)
        try:
            yield
        finally:
            self._add(-seconds)

    def _add(self, seconds: float) -> None:
        with self._lock:
            self._seconds = max(0.0, self._seconds + seconds)
            signal.setitimer(signal.ITIMER_PROF, self._seconds if self._seconds > 1e-6 else 0.0)  # SIGPROF ends it


def main(trying: socket.socket, following: socket.socket | None) -> None:
    """Serve until a socket closes. Without `following`, grammars are only tried."""
    library = CompiledGrammars(_compiler(receive(trying)[0]))
    library.matcher('start: "a"')  # set up what the first grammar needs, so that no client's grammar pays for it
    send(trying, "")
    timer = Timer()
    if following is None:
        _try(trying, library, timer, COMPILE_BYTES)
    else:
        _limit_memory(FOLLOW_BYTES)
        threading.Thread(target=_try, args=(trying, library, timer, None), daemon=True).start()
        _follow(following, library, timer)


def _compiler(first: dict[str, Any]) -> Compiler:
    if "directory" not in first:
        return Compiler(Vocabulary.from_json(first["vocabulary"]))
    directory = Path(first["directory"])
    tokenizer = load_tokenizer(directory)
    return Compiler.of(tokenizer, read_generation(directory, tokenizer.eos_id).eos_token_ids, first["size"])


def _try(sock: socket.socket, library: CompiledGrammars, timer: Timer, n_bytes: int | None) -> None:
    with contextlib.suppress(OSError):
        while True:
            grammar, _ = receive(sock)
            if n_bytes is not None:
                _limit_memory(n_bytes)
            with timer.task(COMPILE_SECONDS):
                problem = _tried(library, grammar)
            send(sock, problem)


def _tried(library: CompiledGrammars, grammar: str) -> str:
    """What is wrong with a grammar, "" if nothing: it is compiled, then followed for some random tokens."""
    try:
        return _walk(Follower(library.matcher(grammar)), Random(0))
    except Exception as error:
        return one_line(error)


def _walk(follower: Follower, rng: Random) -> str:
    tokens: list[int] = []
    for _ in range(TRIAL_TOKENS):
        masks, fault = follower.masks(tokens, ())
        if fault or follower.stopped:
            return fault
        tokens = [_some_token(masks[0], rng)]
    return ""


def _some_token(mask: bytes, rng: Random) -> int:
    """A token that the mask allows, in the first byte after a random position that allows any."""
    start = rng.randrange(len(mask))
    rotated = mask[start:] + mask[:start]
    place = len(rotated) - len(rotated.lstrip(b"\0"))
    bits = [bit for bit in range(8) if rotated[place] >> bit & 1]
    return (start + place) % len(mask) * 8 + rng.choice(bits)


def _follow(sock: socket.socket, library: CompiledGrammars, timer: Timer) -> None:
    followers: dict[int, Follower] = {}
    with contextlib.suppress(OSError):
        while True:
            step, _ = receive(sock)
            followers = {number: followers[number] for number, *_ in step if number in followers}
            for number, grammar, tokens, draft in step:
                with timer.task(MASK_SECONDS):
                    masks, fault = _masks(followers, library, number, grammar, tokens, draft)
                send(sock, (fault, len(masks)), b"".join(masks))


def _masks(
    followers: dict[int, Follower],
    library: CompiledGrammars,
    number: int,
    grammar: str | None,
    tokens: list[int],
    draft: list[int],
) -> tuple[list[bytes], str]:
    try:
        if grammar is not None:
            followers[number] = Follower(library.matcher(grammar))
        return followers[number].masks(tokens, draft)
    except Exception as error:  # with any error, only this sequence ends
        return [], one_line(error)


def _limit_memory(n_bytes: int) -> None:
    """Let allocations fail beyond `n_bytes` more than now, where the system tells how much is used."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        used = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + n_bytes, resource.getrlimit(resource.RLIMIT_AS)[1]))


if __name__ == "__main__":
    SOCKETS = [socket.socket(fileno=int(number)) for number in sys.argv[1:]]
    threading.stack_size(STACK_BYTES)
    THREAD = threading.Thread(target=main, args=(SOCKETS[0], SOCKETS[1] if SOCKETS[1:] else None))
    THREAD.start()
    THREAD.join()
