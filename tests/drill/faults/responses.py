"""Stored responses: their disk is full, the server is killed while it has some, and clients read large ones slowly."""

import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx

from tests.drill.attacks.connections import held
from tests.drill.explained import NOTHING
from tests.drill.processes import send
from tests.drill.row import MIB, LoneRow, NotPossible, Promise, Row, check
from tests.drill.stage import Stage
from tests.drill.target import Target, running
from tests.e2e.server import MODEL

PATH = "/v1/responses"
DISK = "size=1m"
END_SECONDS = 60.0
LETTERS = {
    "type": "json_schema",
    "name": "letters",
    "schema": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "minItems": 500, "maxItems": 500},
}
"""The format of an answer of about 2,000 tokens."""
READERS, READS = 25, 8
ITEM_BYTES = 31 * MIB
STORY = {"input": "Tell me a long story.", "temperature": 0, "max_output_tokens": 200}


def created(target: Target, **body: Any) -> dict[str, Any]:
    """A response. Raises Broken if there is none."""
    answer = target.server.http.post(PATH, json={"max_output_tokens": 4, "temperature": 0, **body})
    check(answer.status_code == 200, f"a request got {answer.status_code}: {answer.text[:200]}")
    found: dict[str, Any] = answer.json()
    return found


def retrieved(target: Target, id: str) -> dict[str, Any]:
    answer = target.server.http.get(f"{PATH}/{id}")
    check(answer.status_code == 200, f"a stored response got {answer.status_code}: {answer.text[:200]}")
    found: dict[str, Any] = answer.json()
    return found


def finished(target: Target, id: str) -> dict[str, Any]:
    deadline = time.monotonic() + END_SECONDS
    while (found := retrieved(target, id))["status"] in ("queued", "in_progress"):
        check(time.monotonic() < deadline, "a response does not end")
        time.sleep(0.1)
    return found


def mount(target: Target) -> None:
    command = ["mount", "-t", "tmpfs", "-o", DISK, "none", str(target.folder / "disk")]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        raise NotPossible("no file system can be mounted here")


def full_disk() -> str:
    """Store responses until the disk is full: they are answered all the same, and say that they are not stored."""
    with running("responses", before=mount) as target:
        try:
            texts: set[str] = set()
            stored: list[str] = []
            lost = 0
            metadata = {str(number): "x" * 512 for number in range(16)}
            while lost < 5:
                check(len(stored) < 1000, "the disk is never full")
                response = created(target, input="Say hello.", metadata=metadata)
                texts.add(response["output"][0]["content"][0]["text"])
                if response["store"]:
                    stored.append(response["id"])
                else:
                    lost += 1
            check(len(texts) == 1, "answers differ")
            refusal = target.server.http.post(PATH, json=STORY | {"background": True, "metadata": metadata})
            clear = refusal.status_code == 503 and refusal.json()["error"]["code"] == "store_failed"
            check(clear, f"one in the background got {refusal.status_code}: {refusal.text[:200]}")
            for id in stored:
                retrieved(target, id)
            return f"{len(stored)} stored, {lost} with store false"
        finally:
            subprocess.run(["umount", "-l", target.folder / "disk"], check=True)


def killed() -> str:
    """SIGKILL of the service: what was stored is answered afterwards, and what ran has failed."""
    with running("responses") as target:
        whole = [created(target, input=f"Say {number}.") for number in range(20)]
        begun = created(target, **STORY, background=True)["id"]
        send(target.pid, signal.SIGKILL)
        target.server.process.wait()
        target.start()
        for response in whole:
            same = retrieved(target, response["id"])["output"] == response["output"]
            check(same, "a stored response is another one")
        status = retrieved(target, begun)["status"]
        check(status == "failed", f"what ran is {status}")
        return f"{len(whole)} stored responses, 1 failed"


def slow_readers(stage: Stage) -> str:
    """Let readers of a long stored stream stop reading at its beginning."""
    scores = {"top_logprobs": 20, "include": ["message.output_text.logprobs"]}
    long = {"model": MODEL, "input": "Write letters.", "max_output_tokens": 3000, "text": {"format": LETTERS}}
    id = finished(stage.target, created(stage.target, **long, **scores, background=True)["id"])["id"]
    with stage.target.server.http.stream("GET", f"{PATH}/{id}?stream=true") as whole:
        n_bytes = sum(map(len, whole.iter_bytes()))
    check(n_bytes > 4 * MIB, f"the stream has {n_bytes} bytes only")
    head = f"GET {PATH}/{id}?stream=true HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    with held(stage.target.port, READERS, head) as socks:
        check(len(socks) == READERS, f"{len(socks)} connections")
        time.sleep(5.0)
    return f"{READERS} readers of {n_bytes // MIB} MiB"


def large_item(stage: Stage) -> str:
    """Read a large item of a conversation many times at once."""
    text = "x" * ITEM_BYTES
    items = [{"role": "user", "content": text}]
    made = httpx.post(f"{stage.target.url}/v1/conversations", json={"items": items}, timeout=END_SECONDS)
    address = f"{stage.target.url}/v1/conversations/{made.json()['id']}/items"

    def read(_: int) -> int:
        answer = httpx.get(address, timeout=END_SECONDS)
        whole = answer.status_code == 429 or answer.json()["data"][0]["content"][0]["text"] == text
        check(whole, f"an item got {answer.status_code}: {answer.text[:200]}")
        return answer.status_code

    with ThreadPoolExecutor(READS) as pool:
        statuses = [*pool.map(read, range(READS))]
    return f"{statuses.count(200)} of {READS} reads of {ITEM_BYTES // MIB} MiB"


ROWS = (
    Row(
        f"{READERS} readers of a long stored stream that do not read",
        Promise("each holds a piece of it"),
        slow_readers,
        cause=NOTHING,
    ),
    Row(
        f"{READS} reads at once of a stored item of {ITEM_BYTES // MIB} MiB",
        Promise("each is whole or a 429", memory=16 * ITEM_BYTES),
        large_item,
        "large bodies",
        cause=NOTHING,
    ),
    LoneRow(
        "the disk of stored responses is full",
        "requests are answered with store false; those that need the store get a 503",
        full_disk,
    ),
    LoneRow(
        "SIGKILL of the service with a file of responses",
        "stored responses are answered afterwards; what ran in the background has failed",
        killed,
    ),
)
