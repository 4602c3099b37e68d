"""What a person at the terminal sees while the server starts: a progress bar, then where to go."""

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

from service.engine.client import EngineClient
from service.generation.served import ServedModel
from service.settings import Settings

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE_SECONDS = 0.7
REFRESH_SECONDS = 0.1


class ProgressBar:
    """Stage and progress of loading on stderr, for starts that take a moment. `stop` wipes it away."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client
        self._bar: Progress | None = None

    async def run(self) -> None:
        """Until cancelled."""
        await asyncio.sleep(PATIENCE_SECONDS)
        from rich.console import Console
        from rich.progress import Progress

        self._bar = Progress(console=Console(stderr=True), transient=True)
        task = self._bar.add_task("", total=1.0)
        self._bar.start()
        while self._bar is not None:
            self._bar.update(task, description=self._client.stage, completed=self._client.progress)
            await asyncio.sleep(REFRESH_SECONDS)

    def stop(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def address(settings: Settings, port: int) -> str:
    """The URL to try from this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    scheme = "http" if settings.ssl_certfile is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def welcome(served: ServedModel, settings: Settings, url: str) -> str:
    """The address and a curl line to paste."""
    name = served.names[0]
    question: dict[str, Any]
    key = " -H 'Authorization: Bearer YOUR_KEY'" if settings.api_keys else ""
    if served.chat is None:
        path, question = "/v1/completions", {"prompt": "Once upon a time"}
    else:
        path = "/v1/chat/completions"
        question = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
    body = {"model": name, **question}
    curl = f"curl {url}{path} -H 'Content-Type: application/json'{key} -d '{json.dumps(body)}'"
    return f"noria: {name} is ready on {url}\nTry: {curl}"


def say(text: str) -> None:
    """A line for the person who started the server."""
    print(text, file=sys.stderr, flush=True)
