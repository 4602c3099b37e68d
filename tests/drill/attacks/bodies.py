"""Bodies below the limit of size that are hard to parse, to check or to tokenize."""

import contextlib
import json
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from select import select

import httpx

from tests.drill.canary import CHAT, COMPLETIONS, Question, ask
from tests.drill.row import MIB, Promise, Row, check
from tests.drill.stage import Stage
from tests.drill.wire import ATTACKER, connect, fetch, request

SIZE = 8 * MIB - 4096
AT_ONCE = 3
PATIENCE = 60.0
JSON = {"content-type": "application/json"}
SCHEMA = '{"type": "json_schema", "json_schema": {"name": "x", "schema": %s}}'


def body(**fields: str) -> bytes:
    """A JSON object; the values are JSON already."""
    parts = {"max_tokens": "1"} | fields
    return ("{" + ",".join(f'"{name}":{value}' for name, value in parts.items()) + "}").encode()


def user(content: str) -> str:
    """A list of one message with this content."""
    return f'[{{"role":"user","content":{content}}}]'


def called(arguments: str) -> str:
    """Messages with a tool call that has these arguments."""
    function = f'{{"name":"f","arguments":{json.dumps(arguments)}}}'
    call = f'{{"id":"1","type":"function","function":{function}}}'
    return f'[{{"role":"user","content":"x"}},{{"role":"assistant","tool_calls":[{call}]}}]'


def keys(n: int) -> str:
    return "{" + ",".join(f'"k{number}":1' for number in range(n)) + "}"


def repeated(item: str, n_bytes: int = SIZE) -> str:
    """A list of equal items."""
    return "[" + ",".join([item] * (n_bytes // (len(item) + 1))) + "]"


def nested(n: int) -> str:
    return "[" * n + "]" * n


TEXT, MESSAGE = '{"type":"text","text":""}', '{"role":"user","content":""}'
BODIES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "a list of a million empty lists": (CHAT, lambda: body(messages=user(repeated("[]", 3 * 10**6)))),
    "a prompt of a million empty lists": (COMPLETIONS, lambda: body(prompt=repeated("[]", 3 * 10**6))),
    "a prompt of 2 million numbers": (COMPLETIONS, lambda: body(prompt=repeated("1", 4 * 10**6))),
    "600,000 unknown keys": (CHAT, lambda: body(messages=user('"x"'), drill=keys(600_000))),
    "600,000 template variables": (
        CHAT,
        lambda: body(messages=user('"x"'), chat_template_kwargs=keys(600_000)),
    ),
    "7.6 MB of a tool call's arguments": (CHAT, lambda: body(messages=called(keys(520_000)))),
    "8 MB of {} blocks": (CHAT, lambda: body(messages=user(repeated("{}")))),
    "8 MB of text blocks": (CHAT, lambda: body(messages=user(repeated(TEXT)))),
    "8 MB of messages": (CHAT, lambda: body(messages=repeated(MESSAGE))),
    "lists 4 million deep": (CHAT, lambda: body(messages=user(nested(SIZE // 2)))),
    "a tool call's arguments 100,000 deep": (CHAT, lambda: body(messages=called(nested(100_000)))),
    "a schema 100,000 deep": (
        CHAT,
        lambda: body(messages=user('"x"'), response_format=SCHEMA % ('{"items":' * 100_000 + "{}" + "}" * 100_000)),
    ),
    "8 MB of spaces as a prompt": (COMPLETIONS, lambda: body(prompt=f'"{" " * SIZE}"')),
    "8 MB of line feeds as a message": (CHAT, lambda: body(messages=user(json.dumps("\n" * (SIZE // 2))))),
    "8 MB of one letter": (COMPLETIONS, lambda: body(prompt=f'"{"a" * SIZE}"')),
    "8 MB of escapes": (COMPLETIONS, lambda: body(prompt='"' + "\\u0041" * (SIZE // 6) + '"')),
    "a number of 8 MB": (COMPLETIONS, lambda: body(prompt='"x"', seed="1" * SIZE)),
    "8 MB of spaces around a body": (COMPLETIONS, lambda: b" " * SIZE + body(prompt='"x"')),
}
"""What is sent, where, and how it is made."""


def send(name: str, stage: Stage) -> str:
    """Send a body several times at once."""
    path, make = BODIES[name]
    content = make()
    begun = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        statuses = sorted(pool.map(lambda _: post(stage, path, content), range(AT_ONCE)))
    check(set(statuses) <= {200, 400, 413}, f"answered with {statuses}")
    return f"answered with {statuses} in {time.monotonic() - begun:.1f} s"


def post(stage: Stage, path: str, content: bytes) -> int:
    transport = httpx.HTTPTransport(local_address=ATTACKER)
    with httpx.Client(transport=transport, timeout=PATIENCE) as http:
        return http.post(stage.target.url + path, content=content, headers=JSON).status_code


def spaces_of_the_gone(stage: Stage) -> str:
    """Clients send 8 MB of spaces and go away; a neighbour's chat must not wait for that work."""
    path, make = BODIES["8 MB of spaces as a prompt"]
    content = make()
    for _ in range(4):
        with contextlib.suppress(httpx.TimeoutException):
            fetch("POST", stage.target.url + path, content=content, headers=JSON, timeout=0.4)
    chat = next(question for question in stage.canary.questions if question.path == CHAT)
    answer = ask(stage.target.url, Question(chat.path, chat.body))
    check(answer.status == 200, f"the neighbour got {answer.status}")
    check(answer.seconds <= 5.0, f"the neighbour waited {answer.seconds:.1f} s")
    return f"the neighbour waited {answer.seconds:.1f} s"


SLOW = request(b"", COMPLETIONS).replace(b"content-length: 0", b"content-length: %d" % (8 * MIB))
"""The head of a body of 8 MiB that does not end: it may take nine minutes."""
N_SLOW = 20
REFUSED_SECONDS = 20.0


def slow_uploads(make: Callable[[], tuple[str, bytes]], stage: Stage) -> str:
    """One client sends more large bodies than fit into memory, all but their ends; others send large bodies, too."""
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connect(stage.target.port)) for _ in range(N_SLOW)]
        for sock in socks:
            upload(sock)
        check(select(socks, [], [], REFUSED_SECONDS)[0], "no upload was refused")
        statuses = [send_large(stage, *make()) for _ in range(5)]
    check(statuses == [200] * 5, f"large bodies of others got {statuses}")
    return f"{len(statuses)} large bodies of others were answered"


def upload(sock: socket.socket) -> None:
    """Send nearly all of a body."""
    with contextlib.suppress(OSError):  # the server closes a connection that it refuses
        sock.sendall(SLOW)
        sock.sendall(b" " * (8 * MIB - 1))


def send_large(stage: Stage, path: str, content: bytes) -> int:
    """The status of a good large body, which another client sends."""
    headers = JSON | stage.target.headers
    return fetch("POST", stage.target.url + path, content=content, headers=headers, timeout=PATIENCE).status_code


def long_body() -> tuple[str, bytes]:
    return COMPLETIONS, body(prompt='"The wheel"').ljust(SIZE)


MEMORY = 768 * MIB
"""Three bodies of 8 MB at once, parsed: about 30 bytes for each of theirs."""
HARD = Promise("200, 400 or 413", memory=MEMORY)
SLOWLY = Promise("large bodies of others are answered", memory=384 * MIB)
ROWS = (
    *(Row(f"body: {name}", HARD, partial(send, name)) for name in BODIES),
    Row("20 slow uploads of one client", SLOWLY, partial(slow_uploads, long_body)),
    Row("4 clients with 8 MB of spaces that go away", Promise("a neighbour waits 5 s at most"), spaces_of_the_gone),
)
