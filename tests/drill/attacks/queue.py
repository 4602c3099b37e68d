"""The queue: requests that multiply, priorities, and a flood of one key beside another."""

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx

from tests.drill.canary import COMPLETIONS, repeated
from tests.drill.processes import send
from tests.drill.row import MIB, Promise, Row, check
from tests.drill.stage import Stage
from tests.drill.target import KEYS, key_file
from tests.drill.wire import connect, fetch, request

VICTIM_SECONDS = 10.0
FULL = frozenset({429})


def post(stage: Stage, key: str = "", **body: object) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else stage.target.headers
    whole = {"prompt": "The wheel", "max_tokens": 4, "temperature": 0} | body
    return fetch("POST", stage.target.url + COMPLETIONS, json=whole, headers=headers, timeout=60)


def many_choices(stage: Stage) -> str:
    """100 requests with a prompt of 19 kB and 128 choices. Their clients go after some seconds."""
    body = json.dumps({"prompt": "The wheel turns. " * 1120, "n": 128, "max_tokens": 1, "temperature": 1}).encode()
    data = request(body)
    socks = [connect(stage.target.port) for _ in range(100)]
    try:
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda sock: sock.sendall(data), socks))
        time.sleep(5.0)
    finally:
        for sock in socks:
            sock.close()
    return f"{len(socks)} requests, {len(socks) * 128} choices"


def priorities(stage: Stage) -> str:
    """Priorities beyond the bounds, and one below 0 by a key that may not."""
    statuses = {value: post(stage, priority=value).status_code for value in (-(2**63), -11, 11, 2**63, -1, 10)}
    check(all(statuses[value] == 400 for value in (-(2**63), -11, 11, 2**63)), f"beyond the bounds: {statuses}")
    check(statuses[-1] in (400, 403), f"-1 without the right to it: {statuses[-1]}")
    check(statuses[10] == 200, f"10: {statuses[10]}")
    return f"{statuses}"


@contextmanager
def flooding(stage: Stage, key: str, n: int, **body: object) -> Iterator[list[int]]:
    """Requests with one key, `n` at a time, until the block ends; gives their statuses."""
    statuses: list[int] = []

    def again(number: int) -> float:
        statuses.append(post(stage, key, **body).status_code)
        return 0.05

    with repeated(again, n):
        yield statuses


def unfair(stage: Stage) -> str:
    """One key floods the queue; a victim with another key asks all the same (the canary is one, too)."""
    with flooding(stage, KEYS["flood"], 48, max_tokens=64, ignore_eos=True) as statuses:
        time.sleep(3.0)
        begun = time.monotonic()
        status = post(stage, max_tokens=16).status_code
        seconds = time.monotonic() - begun
    check(status == 200, f"the victim got {status}")
    check(seconds <= VICTIM_SECONDS, f"the victim waited {seconds:.1f} s")
    return f"the victim waited {seconds:.1f} s beside {len(statuses)} requests"


def limited(stage: Stage) -> str:
    """A key with three requests a minute sends six."""
    answers = [post(stage, KEYS["limited"]) for _ in range(6)]
    statuses = [answer.status_code for answer in answers]
    check(statuses == [200] * 3 + [429] * 3, f"statuses {statuses}")
    wait = answers[-1].headers.get("retry-after", "")
    check(wait.isdigit() and 0 < int(wait) <= 61, f"Retry-After {wait!r}")
    return f"{statuses}, Retry-After {wait}"


def usage_by_name(stage: Stage) -> str:
    """The metrics name keys, and never show one."""
    post(stage)
    text = fetch("GET", stage.target.url + "/metrics", headers=stage.target.headers, timeout=10).text
    check('"steady"' in text, "no metric names the key")
    check(not any(key in text + stage.target.log for key in KEYS.values()), "a key is in the metrics or in the log")
    return "usage by name"


def reloaded(stage: Stage) -> str:
    """A key is added to the file, then SIGHUP comes."""
    before = post(stage, "late-key").status_code
    key_file(stage.target.folder, late="late-key")
    send(stage.target.pid, signal.SIGHUP)
    time.sleep(1.0)
    after = post(stage, "late-key").status_code
    check((before, after) == (401, 200), f"{before} before, {after} after")
    return f"{before} before, {after} after"


ROWS = (
    Row(
        "100 requests of 19 kB with n=128",
        Promise(memory=256 * MIB, answers=30.0, refusals=FULL),
        many_choices,
    ),
    Row(
        "priorities from -2**63 to 2**63",
        Promise("beyond -10..10: 400; below 0: only keys that may"),
        priorities,
        "keys",
    ),
    Row(
        "a flood of one key beside another",
        Promise(f"the other key waits {VICTIM_SECONDS:g} s at most", answers=VICTIM_SECONDS),
        unfair,
        "keys",
    ),
    Row("a key beyond its limit", Promise("429 with Retry-After up to 61: it counts whole seconds"), limited, "keys"),
    Row("keys in metrics and log", Promise("by name, never the key"), usage_by_name, "keys"),
    Row("a key added, then SIGHUP", Promise("401 before, 200 after"), reloaded, "keys", 6),
)
