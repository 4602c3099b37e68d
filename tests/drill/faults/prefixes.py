"""Pages on disk: the disk is full, gone, read-only or wrong, servers share it, and die while they write."""

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

from service.engine.prefixes.store import LIST_SECONDS
from tests.drill.canary import COMPLETIONS, GREEDY, Question, ask
from tests.drill.explained import NOTHING
from tests.drill.processes import send
from tests.drill.row import SERVES_SECONDS, NotPossible, Promise, Row, check
from tests.drill.stage import Stage
from tests.drill.target import Target

SAVED_SECONDS = 20.0
TROUBLE = "pages of --prefix-store cannot be"
NUMBERS = count()
FULL = "size=3m"
"""A disk for four pages of the embedded model."""


def new_prompt() -> Question:
    """A question of a dozen pages that nobody has asked."""
    return Question(COMPLETIONS, GREEDY | {"prompt": f"{next(NUMBERS)} buckets ride up full. " * 50, "max_tokens": 8})


def answer(target: Target, question: Question) -> str:
    """The text of an answer. Asks again while an engine is replaced. Raises Broken if there is none in time."""
    deadline = time.monotonic() + SERVES_SECONDS
    while (got := ask(target.url, question)).status != 200 and time.monotonic() < deadline:
        time.sleep(0.1)
    check(got.status == 200, f"a long prompt got {got.status}: {got.text}")
    return got.text


def saved(target: Target, n_pages: int) -> None:
    """Wait until the directory has so many pages."""
    deadline = time.monotonic() + SAVED_SECONDS
    while (n := len(pages(target))) < n_pages:
        check(time.monotonic() < deadline, f"{n} pages were saved, {n_pages} were expected")
        time.sleep(0.1)


def pages(target: Target) -> list[Path]:
    return [*(target.folder / "pages").rglob("*.page")]


@contextmanager
def mounted(target: Target, *options: str) -> Iterator[Path]:
    """A file system of its own over the directory."""
    place = target.folder / "pages"
    place.mkdir(exist_ok=True)
    if subprocess.run(["mount", "-t", "tmpfs", *options, "none", place], capture_output=True, check=False).returncode:
        raise NotPossible("no file system can be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def unwritable(kind: str, stage: Stage) -> str:
    """A full or a read-only disk: long prompts are answered all the same, and the log has one line about it."""
    target, before = stage.target, stage.target.log.count(TROUBLE)
    with mounted(target, "-o", FULL if kind == "full" else "ro"):
        question = new_prompt()
        texts = {answer(target, question) for _ in range(3)} | {answer(target, new_prompt()) for _ in range(4)}
        time.sleep(1.0)
    stage.mark()
    lines = target.log.count(TROUBLE) - before
    check(lines <= 1, f"the log has {lines} lines about it")
    dropped = target.metric("noria_prefix_store_dropped_pages_total")
    check(dropped > 0, "no page was dropped")
    return f"{len(texts)} answers, {dropped:.0f} pages dropped, {lines} line in the log"


def removed(stage: Stage) -> str:
    """Remove the directory of the running server: it makes a new one."""
    answer(stage.target, new_prompt())
    saved(stage.target, 4)
    shutil.rmtree(stage.target.folder / "pages", ignore_errors=True)
    stage.mark()
    answer(stage.target, new_prompt())
    saved(stage.target, 4)
    return "it is made again"


def damaged(stage: Stage) -> str:
    """Flip a bit of each file, and kill the engine, so that the next one must read them."""
    target, question = stage.target, new_prompt()
    right, n_before = answer(target, question), len(pages(target))
    saved(target, n_before + 8)
    files = pages(target)
    for number, path in enumerate(files):
        data = bytearray(path.read_bytes())
        data[number * 7919 % len(data)] ^= 1 << number % 8
        path.write_bytes(data)
    send(target.find("engine").pid, signal.SIGKILL)
    stage.mark()
    from_disk = target.metric("noria_prefix_cache_disk_tokens_total")
    check(answer(target, question) == right, "the answer is another one")
    check(target.metric("noria_prefix_cache_disk_tokens_total") == from_disk, "a damaged page was served")
    return f"{len(files)} damaged pages, none was served"


def killed_while_writing(stage: Stage) -> str:
    """Kill the engine again and again as pages are written. What the next one reads is right."""
    target, n_read = stage.target, 0.0
    for _ in range(3):
        question = new_prompt()
        right, n_before = answer(target, question), len(pages(target))
        deadline = time.monotonic() + SAVED_SECONDS
        while len(pages(target)) == n_before and time.monotonic() < deadline:
            time.sleep(0.001)
        send(target.find("engine").pid, signal.SIGKILL)
        stage.mark()
        check(answer(target, question) == right, "the answer is another one")
        n_read = target.metric("noria_prefix_cache_disk_tokens_total")
    return f"the engines read {n_read:.0f} tokens"


def shared(stage: Stage) -> str:
    """Another server on the directory, which is killed while both write."""
    other = Target("main")
    other.serve_prefixes(stage.target.folder / "pages")
    try:
        other.start()
        question = new_prompt()
        right, n_before = answer(stage.target, question), len(pages(stage.target))
        saved(stage.target, n_before + 8)
        time.sleep(LIST_SECONDS + 1.0)
        check(answer(other, question) == right, "the other server gives another answer")
        n_read = other.metric("noria_prefix_cache_disk_tokens_total")
        check(n_read > 0, "the other server has read no page")
        answer(other, new_prompt())
        send(other.pid, signal.SIGKILL)
    finally:
        other.close()
    stage.mark()
    check(answer(stage.target, question) == right, "the answer is another one")
    return f"the other one read {n_read:.0f} tokens"


FAILS = "the-disk-of-pages"
LONG_PROMPTS = "long prompts are answered; the log has at most one line about it"
ROWS = tuple(
    Row(fault, Promise(own, serves=SERVES_SECONDS), action, "prefixes", 6 if action is removed else 1, cause)
    for fault, own, action, cause in (
        ("the disk of pages is full", LONG_PROMPTS, partial(unwritable, "full"), FAILS),
        ("the disk of pages is read-only", LONG_PROMPTS, partial(unwritable, "read-only"), FAILS),
        ("the directory of pages is removed", "it is made again", removed, NOTHING),
        ("each page on disk has a flipped bit", "no damaged page is served", damaged, "damaged-pages"),
        (
            "SIGKILL of the engine while it writes pages",
            "what is read is right",
            killed_while_writing,
            "the-engine-was-killed",
        ),
        (
            "another server writes to the directory of pages, and is killed",
            "each reads what the other has written",
            shared,
            NOTHING,
        ),
    )
)
