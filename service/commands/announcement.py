"""The output on the terminal when the server is ready: its address and a first request."""

import json
import sys
from shlex import quote
from typing import Any

from service.settings import Settings

UNIX = "unix:"


def address(settings: Settings, port: int | None) -> str:
    """Return the URL to try from this machine, or unix:PATH without a port."""
    if port is None:
        return f"{UNIX}{settings.uds}"
    host = settings.address[0]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme = "http" if settings.ssl_certfile is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def welcome(model: str, url: str, *, chat: bool, key: bool, unused_gpu: str | None = None) -> str:
    """Return the address, and a curl command to paste. `chat`: the model has a chat format. `key`: requests need a key.

    `unused_gpu`: why it runs on the CPU although there is a GPU.
    """
    question: dict[str, Any]
    if chat:
        path = "/v1/chat/completions"
        question = {"messages": [{"role": "user", "content": "What is the capital of Japan?"}]}
    else:
        path, question = "/v1/completions", {"prompt": "Once upon a time"}
    body = json.dumps({"model": model, **question})
    header = " -H 'Authorization: Bearer YOUR_KEY'" if key else ""
    file = url.removeprefix(UNIX) if url.startswith(UNIX) else None
    where = url if file is None else f"--unix-socket {quote(file)} http://localhost"
    browse = " (open it in a browser)" if file is None else ""
    curl = f"curl {where}{path} -H 'Content-Type: application/json'{header} -d '{body}'"
    slow = f"\nIt runs on the CPU: {unused_gpu}" if unused_gpu else ""
    return f"noria: {model} is ready on {url}{browse}{slow}\nTry: {curl}"


def say(text: str) -> None:
    """Print a line on stderr for the person who started the server."""
    print(text, file=sys.stderr, flush=True)
