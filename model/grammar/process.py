"""The process that compiles and follows grammars. If a grammar hangs or crashes it, nothing else is harmed.

    python -m model.grammar.process TRY [FOLLOW]

The arguments are file descriptors of sockets, which carry frames (`model/machine/frames.py`). `client.py` has their
other ends. The first frame on TRY is the vocabulary (`helper.First`); the answer says whether the system allows less
memory than the limits here. Each further frame is a grammar to compile; the answer is what is wrong with it.
A frame on FOLLOW is a step: for each sequence its number, its grammar if it is new, its new tokens and a draft. The
answer for each sequence is the result of `Follower.masks`.
The process ends when a socket closes. It ends itself when a task takes too much time, and at any error that is not the
grammar's: its parent reads on stderr what it was.
"""

import contextlib
import socket
import threading
import time
from random import Random
from typing import Any

from model.chat.ends import end_tokens
from model.chat.formats import load_chat
from model.errors import ParameterError, one_line, quoted
from model.grammar.archive import unpack
from model.grammar.compiler import CompiledGrammars, Compiler
from model.grammar.follower import GrammarFollower
from model.grammar.vocabulary import Vocabulary
from model.machine.frames import receive, send
from model.machine.limits import Timer, limit_memory, run
from model.tokenizers.load import load_tokenizer
from model.tokenizers.roles import read_roles

TRY_SECONDS, COMPILE_SECONDS = 0.5, 2.0
MASK_SECONDS = 0.5
"""Limits of processor time: for a grammar that others wait behind, for any grammar, and for one sequence's masks in a
step, which usually take about 0.1 ms."""
START_SECONDS = 20.0
"""Limit of processor time for the start, which takes about 0.2 s."""
REPLAY_SECONDS = 0.001
"""More time for each token that a matcher consumes: in a fresh process, those are all that the sequence has."""
COMPILE_BYTES = 64 * 2**20
FOLLOW_BYTES = 4 * 2**30
STACK_BYTES = 2**20
"""Stack of the thread that compiles, the same in every process: a grammar that passed once passes again."""
RANDOM_STEPS, TRIAL_STEPS, TRIAL_SECONDS = 32, 1024, 0.25
"""A trial follows a grammar for some random tokens, then to the end of the answer within these limits."""
LAST_CHARS = 40
"""Characters of the text before a fault, in its message."""


def main(trying: socket.socket, following: socket.socket | None = None) -> None:
    """Serve until a socket closes. Without `following`, grammars are only tried."""
    timer = Timer()
    first = receive(trying)
    with timer.task(START_SECONDS):
        library = CompiledGrammars(_compiler(*first))
        library.matcher('start: "a"')  # set up what the first grammar needs, so that no client's grammar pays for it
    n_bytes = COMPILE_BYTES if following is None else FOLLOW_BYTES
    send(trying, {"limited": not limit_memory(n_bytes)})
    if following is None:
        _try(trying, library, timer, first[0]["seconds"], n_bytes)
    else:
        threading.Thread(target=_try, args=(trying, library, timer, COMPILE_SECONDS), daemon=True).start()
        _follow(following, library, timer)


def _compiler(first: dict[str, Any], archive: bytes) -> Compiler:
    if not archive:
        return Compiler(Vocabulary.from_json(first["vocabulary"]))
    directory = unpack(archive)
    roles = read_roles(directory)
    tokenizer = load_tokenizer(directory, roles)
    chat = load_chat(directory, tokenizer, roles=roles)
    return Compiler.of(tokenizer, [*end_tokens(directory, roles, tokenizer, chat)], first["size"])


def _try(
    sock: socket.socket, library: CompiledGrammars, timer: Timer, seconds: float, n_bytes: int | None = None
) -> None:
    with contextlib.suppress(ConnectionError):
        while True:
            grammar, _ = receive(sock)
            if n_bytes is not None:
                limit_memory(n_bytes)
            with timer.task(seconds):
                problem = _tried(library, grammar)
            send(sock, problem)


def _tried(library: CompiledGrammars, grammar: str) -> str:
    """Return the fault of a grammar, "" if there is none: it is compiled, then followed to the end of an answer."""
    try:
        return _walk(library, library.follower(grammar), Random(0))
    except ParameterError as error:
        return one_line(error)


def _walk(library: CompiledGrammars, follower: GrammarFollower, rng: Random) -> str:
    tokens: list[int] = []
    text, deadline = b"", time.thread_time() + TRIAL_SECONDS
    for n in range(TRIAL_STEPS):
        masks, fault = follower.masks(tokens, ())
        if fault:
            return f"{fault}, after {quoted(' '.join(text.decode(errors='ignore').split())[-LAST_CHARS:])}"
        if follower.stopped or not any(masks[0]) or time.thread_time() > deadline:
            return ""
        mask = masks[0] if n < RANDOM_STEPS else library.compiler.ending(masks[0])
        tokens = follower.forced() or [_some_token(mask, rng)]
        text += b"".join(map(library.compiler.vocabulary.pieces.__getitem__, tokens))
    return ""


def _some_token(mask: bytes, rng: Random) -> int:
    """Choose a token that the mask allows, in the first byte after a random position that allows any."""
    start = rng.randrange(len(mask))
    rotated = mask[start:] + mask[:start]
    place = len(rotated) - len(rotated.lstrip(b"\0"))
    bits = [bit for bit in range(8) if rotated[place] >> bit & 1]
    return (start + place) % len(mask) * 8 + rng.choice(bits)


def _follow(sock: socket.socket, library: CompiledGrammars, timer: Timer) -> None:
    followers: dict[int, GrammarFollower] = {}
    with contextlib.suppress(ConnectionError):
        while True:
            step, _ = receive(sock)
            followers = {number: followers[number] for number, *_ in step if number in followers}
            for number, grammar, tokens, draft in step:
                masks, fault = _masks(followers, library, timer, number, grammar, tokens, draft)
                send(sock, (fault, len(masks)), b"".join(masks))


def _masks(
    followers: dict[int, GrammarFollower],
    library: CompiledGrammars,
    timer: Timer,
    number: int,
    grammar: str | None,
    tokens: list[int],
    draft: list[int],
) -> tuple[list[bytes], str]:
    try:
        if grammar is not None:
            with timer.task(COMPILE_SECONDS):  # `prepare` has compiled it, unless that process was lost
                followers[number] = library.follower(grammar)
        with timer.task(MASK_SECONDS + REPLAY_SECONDS * len(tokens)):
            return followers[number].masks(tokens, draft)
    except ParameterError as error:  # with the grammar's own error, only this sequence ends
        return [], one_line(error)


if __name__ == "__main__":
    run(main, STACK_BYTES, "noria-grammar")
