"""Pages of other sites, which a browser of this machine sends here: by a name that points here, and by the address."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from tests.drill.row import Promise, Row, check
from tests.drill.stage import Stage
from tests.drill.wire import request, talk

BODY = json.dumps({"prompt": "The wheel turns. " * 100, "max_tokens": 400, "ignore_eos": True}).encode()
CALLS = (
    request(BODY),
    request(b'{"lora_name": "drill"}', "/v1/unload_lora_adapter"),
    b"GET /metrics HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"GET /v1/engine/events HTTP/1.1\r\nhost: localhost\r\n\r\n",
    b"DELETE /v1/requests/drill HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
)
PAGES, ROUNDS = 16, 8


def calling(host: bytes, fields: bytes, stage: Stage) -> str:
    """Many pages at once call all that they could use, again and again."""
    data = b"".join(CALLS).replace(b"host: localhost\r\n", b"host: %s\r\n%s" % (host, fields))

    def page(number: int) -> list[int]:
        return talk(stage.target.port, data, seconds=20.0).statuses

    with ThreadPoolExecutor(PAGES) as pool:
        statuses = Counter(status for found in pool.map(page, range(PAGES * ROUNDS)) for status in found)
    check(statuses == {403: PAGES * ROUNDS * len(CALLS)}, f"{dict(statuses)}")
    return f"{statuses[403]} refused"


def calls(fault: str, host: bytes, fields: bytes = b"") -> Row:
    return Row(fault, Promise("each call gets a 403"), partial(calling, host, fields), askers=6)


ROWS = (
    calls("a page whose name points here", b"evil.example"),
    calls("a page of another site", b"localhost", b"sec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors\r\n"),
    calls("a page of another site, without Sec-Fetch-Site", b"127.0.0.1", b"origin: http://evil.example\r\n"),
)
