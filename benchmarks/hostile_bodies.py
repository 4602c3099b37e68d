"""Longest wait for `/live` while hostile bodies are read: `python -m benchmarks.hostile_bodies [PLACE:VALUE ...]`.

It starts `noria serve` with the embedded model. Each body has a legal size, and one of `VALUES` in one of `PLACES`. One
process asks for `/live` every 10 ms, another sends the body, `--copies` times at once. A line has the longest time
of an answer and of a `/live` in milliseconds, and how the first answer begins. The last line has the worst of all.
`PLACE:` means all values in a place, `:VALUE` a value in all places.
"""

import argparse
import http.client
import json
import multiprocessing
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection

from benchmarks.api_path import ready
from service.schema.structure import (
    MAX_CONTAINERS,
    MAX_ELEMENTS,
    MAX_FRACTIONS,
    MAX_NAMES,
    MAX_STRINGS,
)

SIZE = 8 * 10**6
"""Bytes of a large body, below the default of --max-body."""
LIMIT = 8 * 2**20
"""The default of --max-body."""
INTERVAL = 0.01
CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"


def repeated(item: str, size: int = SIZE, *, opening: str = "[", closing: str = "]") -> str:
    """JSON of about `size` bytes that repeats one item."""
    n = size // (len(item) + 1)
    return opening + ",".join([item] * n) + closing


def keys(n: int, value: str = "0") -> str:
    return "{" + ",".join(f'"{number}":{value}' for number in range(n)) + "}"


def nested(depth: int, opening: str = "[", closing: str = "]") -> str:
    return opening * depth + closing * depth


def called(arguments: str) -> str:
    """A conversation whose assistant has called a function with these arguments."""
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return json.dumps([{"role": "assistant", "content": "", "tool_calls": [call]}])


def said(content: str) -> str:
    return f'[{{"role":"user","content":{content}}}]'


def offered(parameters: str) -> str:
    return f'[{{"type":"function","function":{{"name":"f","parameters":{parameters}}}}}]'


def formatted(schema: str) -> str:
    return f'{{"type":"json_schema","json_schema":{{"name":"s","schema":{schema}}}}}'


def enumerated(values: str) -> str:
    return f'{{"enum":{values}}}'


HELLO = said('"Hello"')
DIGITS = "1" * 1_000_000
VALUES: Mapping[str, Callable[[], str]] = {
    "empty lists": lambda: repeated("[]", 3_000_000),
    "empty objects": lambda: repeated("{}"),
    "numbers": lambda: repeated("1", 2_000_000),
    "many numbers": lambda: repeated("1"),
    "fractions": lambda: repeated("0.5"),
    "short strings": lambda: repeated('""'),
    "nulls": lambda: repeated("null"),
    "keys": lambda: keys(600_000),
    "lists in keys": lambda: keys(500_000, "[]"),
    "deep lists": lambda: nested(SIZE // 2),
    "deep objects": lambda: nested(SIZE // 6, '{"a":', "}").replace(":}", ":0}", 1),
    "lists 100 deep": lambda: repeated(nested(100)),
    "long string": lambda: '"' + "a" * SIZE + '"',
    "spaces in a string": lambda: '"' + " " * SIZE + '"',
    "escapes": lambda: '"' + "\\u0000" * (SIZE // 6) + '"',
    "surrogates": lambda: '"' + "\\ud83d\\ude00" * (SIZE // 12) + '"',
    "lone surrogate": lambda: '"' + "\\ud83d" * (SIZE // 6) + '"',
    "words": lambda: '"' + "lorem ipsum " * 55_000 + '"',
    "letters": lambda: '"' + "a" * 660_000 + '"',
    "long integer": lambda: DIGITS,
    "long integers": lambda: f"[{','.join([DIGITS] * 7)}]",
    "integers of 4,000 digits": lambda: repeated("9" * 4_000),
    "long fraction": lambda: "0." + DIGITS,
    "fractions of 4,000 digits": lambda: repeated("0." + "9" * 4_000),
    "spaces": lambda: "[" + " " * SIZE + "]",
    "allowed lists": lambda: repeated("[]", 3 * (MAX_CONTAINERS - 16)),
    "allowed objects": lambda: repeated("{}", 3 * (MAX_CONTAINERS - 16)),
    "allowed objects of keys": lambda: repeated('{"a":"","b":""}', 16 * (MAX_NAMES // 2 - 16)),
    "allowed strings": lambda: repeated('""', 3 * (MAX_STRINGS - 64)),
    "allowed long strings": lambda: repeated(f'"{"a" * 50}"', 53 * (MAX_STRINGS - 64)),
    "allowed keys": lambda: keys(MAX_NAMES - 64),
    "allowed integers": lambda: repeated("12345678901234", 15 * (MAX_ELEMENTS - 64)),
    "allowed fractions": lambda: repeated("0.12345678901234567", 20 * (MAX_FRACTIONS - 64)),
    "allowed digits": lambda: repeated("9" * 4300),
    "broken at the end": lambda: repeated("[]", 3_000_000, closing=""),
}
"""JSON values that cost much."""
PLACES: Mapping[str, tuple[str, Callable[[str], str]]] = {
    "prompt": (PLAIN, lambda value: f'{{"prompt":{value},"max_tokens":1}}'),
    "messages": (CHAT, lambda value: f'{{"messages":{value}}}'),
    "content": (CHAT, lambda value: f'{{"messages":{said(value)},"max_tokens":1}}'),
    "blocks": (MESSAGES, lambda value: f'{{"messages":{said(value)},"max_tokens":1}}'),
    "input": (RESPONSES, lambda value: f'{{"input":{value},"max_output_tokens":1}}'),
    "arguments": (CHAT, lambda value: f'{{"messages":{called(value)},"max_tokens":1}}'),
    "parsed": (CHAT, lambda value: f'{{"messages":[{{"role":"user","content":"a","parsed":{value}}}],"max_tokens":1}}'),
    "unknown": (PLAIN, lambda value: f'{{"prompt":"a","unknown":{value}}}'),
    "parameters": (CHAT, lambda value: f'{{"messages":{HELLO},"tools":{offered(value)},"max_tokens":1}}'),
    "schema": (CHAT, lambda value: f'{{"messages":{HELLO},"response_format":{formatted(value)},"max_tokens":1}}'),
    "schema text": (PLAIN, lambda value: f'{{"prompt":"a","guided_json":{json.dumps(value)},"max_tokens":1}}'),
    "enum": (CHAT, lambda value: f'{{"messages":{HELLO},"response_format":{formatted(enumerated(value))}}}'),
    "kwargs": (CHAT, lambda value: f'{{"messages":{HELLO},"chat_template_kwargs":{{"a":{value}}},"max_tokens":1}}'),
    "logit_bias": (PLAIN, lambda value: f'{{"prompt":"a","logit_bias":{value},"max_tokens":1}}'),
    "stop": (PLAIN, lambda value: f'{{"prompt":"a","stop":{value},"max_tokens":1}}'),
    "text": ("/tokenize", lambda value: f'{{"prompt":{value},"return_token_strs":true,"with_pieces":true}}'),
    "tokens": ("/detokenize", lambda value: f'{{"tokens":{value}}}'),
}
"""Places for a value in a body, with the path of the endpoint."""


def asking(port: int, control: Connection) -> None:
    """Ask for `/live` until told to stop, and send the longest time. It runs in a process of its own."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    longest = 0.0
    while not control.poll():
        started = time.perf_counter()
        connection.request("GET", "/live")
        connection.getresponse().read()
        longest = max(longest, time.perf_counter() - started)
        time.sleep(INTERVAL)
    control.recv()
    control.send(longest)


@contextmanager
def watching(port: int) -> Iterator[Callable[[], float]]:
    """A function that ends the watch and returns the longest time of a `/live` in seconds."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=asking, args=(port, theirs), daemon=True)
    process.start()

    def longest() -> float:
        ours.send(None)
        return float(ours.recv())

    try:
        yield longest
    finally:
        process.join()


def sent(port: int, path: str, body: bytes, copies: int) -> list[bytes]:
    """The first bytes of the answers to copies of a body on connections of their own."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
    request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(copies)]
    for connection in connections:
        with suppress(OSError):  # the server may answer before it has read all
            connection.sendall(request)
    return [read(connection) for connection in connections]


def read(connection: socket.socket) -> bytes:
    parts = []
    with connection, suppress(OSError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts)


def measure(port: int, place: str, value: str, copies: int) -> float:
    """The longest time of a `/live` in milliseconds while copies of a body are answered. It prints a line."""
    path, put = PLACES[place]
    body = put(VALUES[value]()).encode()
    if len(body) > LIMIT:
        return 0.0
    with watching(port) as longest:
        time.sleep(10 * INTERVAL)
        started = time.perf_counter()
        answers = sent(port, path, body, copies)
        seconds = time.perf_counter() - started
        time.sleep(10 * INTERVAL)
        waited = 1000 * longest()
    head, _, content = answers[0].partition(b"\r\n\r\n")
    name, status, text = f"{place}:{value}", head[9:12].decode(), content[:160].decode(errors="replace")
    print(f"{name:40} {1000 * seconds:8.0f} {waited:8.0f}  {status} {text}", flush=True)
    return waited


def chosen(names: list[str]) -> Iterator[tuple[str, str]]:
    for place in PLACES:
        for value in VALUES:
            if not names or {f"{place}:{value}", f"{place}:", f":{value}"} & {*names}:
                yield place, value


@contextmanager
def serving(flags: list[str]) -> Iterator[int]:
    """The port of a ready server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "service", "serve", "--port", str(port), *flags]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            while not answers_ready(port):
                time.sleep(0.1)
            yield port
        finally:
            process.send_signal(signal.SIGTERM)


def answers_ready(port: int) -> bool:
    try:
        return ready(port)
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="PLACE:VALUE, PLACE: or :VALUE; default: all")
    parser.add_argument("--copies", type=int, default=1, help="of each body at once")
    args, flags = parser.parse_known_args()
    with serving(flags) as port:
        print(f"{'place:value':40} {'answer':>8} {'/live':>8}")
        waits = [(measure(port, place, value, args.copies), place, value) for place, value in chosen(args.names)]
    print("longest: {:.0f} ms at {}:{}".format(*max(waits)))


if __name__ == "__main__":
    main()
