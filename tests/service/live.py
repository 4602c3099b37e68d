"""The real server on a real port, with the fake model on a thread of this process."""

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import httpx

from model.chat.conversation import NOTHING
from model.checkpoint.digest import network_files, stamp
from model.checkpoint.generation_config import GenerationDefaults
from model.errors import ParameterError, quoted
from service.access.keys import Keys
from service.api.routes import Route
from service.app import ROUTES
from service.commands.server import create_server
from service.engine.client import EngineClient
from service.generation.served import ServedModel, longest_piece
from service.generation.startup import marks_of
from service.hosting.budget import NeedOf
from service.hosting.entries import ModelEntry, read_entries
from service.hosting.hosted import HostedModel
from service.hosting.memory import Need
from service.http.connection import protocol
from service.http.connection.limits import LIMITS, Limits
from service.http.listening import listen, listen_at
from service.http.server import Server
from service.observe.metrics import Metrics
from service.settings import Settings
from tests.fakes import END, HURRY, EngineThread, IntegerTokenizer, next_token, shade
from tests.samples import sample
from tests.waiting import PATIENCE, eventually


class FakeChat:
    """`u:text;` a message, `a:` before the answer. Its one variable, `tone`, comes first."""

    source: str | None = "{{ messages }}"
    call_style: str | None = None
    may_strip = True
    reasoning_style: str | None = None
    switches: frozenset[str] = frozenset()
    efforts: tuple[str, ...] = ()
    media_roles: Mapping[str, frozenset[str]] = NOTHING
    tells_schema = False

    def encode(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> list[int]:
        return list(self.render(messages, **options).encode())

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] = NOTHING,
        tools: Sequence[Any] | None = None,
    ) -> str:
        if variables.keys() - {"tone"}:
            raise ParameterError("chat_template_kwargs", f"unknown: {quoted(variables)}")
        text = variables.get("tone", "") + "".join(
            f"{message['role'][0]}:{message['content']};" for message in messages
        )
        if continue_final_message:
            text = text.removesuffix(";")
        return text + ("a:" if add_generation_prompt else "")

    def left_out(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None) -> list[int]:
        return []


def answer(prompt: str | list[int], n: int, choice: int = 0, adapter: str | None = None) -> str:
    """The answer of the fake model, by its rule alone. `adapter` is the path of one."""
    choice += shade(adapter) if adapter else 0
    tokens = list(prompt.encode()) if isinstance(prompt, str) else list(prompt)
    length = len(tokens)
    for _ in range(n):
        tokens.append(next_token(tokens, choice))
    return bytes(tokens[length:]).decode()


class Live:
    """A running server and an HTTP client for it."""

    def __init__(
        self,
        server: Server,
        client: EngineClient,
        keys: Keys,
        hosts: list[EngineThread],
        http: httpx.Client,
        running: Callable[[], bool],
        models_file: Path | None,
    ) -> None:
        self.server = server
        self.running = running
        self._models_file = models_file
        self.engine = client
        self.keys = keys
        self.hosts = hosts
        self.http = http
        self.url = str(http.base_url).rstrip("/")
        self.address = (http.base_url.host, http.base_url.port or 80)

    @property
    def state(self) -> Any:
        """What the application keeps for its handlers."""
        return self.server.config.app.state.noria  # type: ignore[union-attr]

    def model(self, name: str) -> HostedModel:
        return self.state.models.find(name, None)

    def reload(self, models: str) -> None:
        """Change the file of --models, and read it again as SIGHUP does."""
        assert self._models_file is not None
        self._models_file.write_text(models)
        done = threading.Event()

        def read() -> None:
            self.server.reload()
            done.set()

        self.state.drain.expired.get_loop().call_soon_threadsafe(read)
        assert done.wait(PATIENCE)

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        return self.http.post(path, json=body, **options)

    def complete(self, **body: Any) -> dict[str, Any]:
        response = self.post("/v1/completions", body)
        assert response.status_code == 200, response.text
        return response.json()

    def chat(self, text: str, **body: Any) -> dict[str, Any]:
        response = self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], **body})
        assert response.status_code == 200, response.text
        return response.json()

    def events(self, path: str, body: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
        """The data of a stream's events. Names, where there are any, are the data's types."""
        response = self.post(path, {**body, "stream": True}, **options)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        assert (response.headers["x-accel-buffering"], response.headers["cache-control"]) == ("no", "no-cache")
        *frames, rest = response.text.split("\n\n")
        assert rest == ""
        if frames[0].startswith("data: "):
            assert frames.pop() == "data: [DONE]"
            return [json.loads(frame.removeprefix("data: ")) for frame in frames]
        named = [frame.removeprefix("event: ").split("\ndata: ") for frame in frames]
        data = [json.loads(text) for _, text in named]
        assert [name for name, _ in named] == [item["type"] for item in data]
        return data

    def metric(self, name: str, **labels: str) -> float:
        """A sample of /metrics, or the sum of those that differ in their model only."""
        return sample(self.http.get("/metrics").text, name, **labels)


@contextmanager
def running(
    *,
    chat: bool | FakeChat = True,
    tokenizer: IntegerTokenizer | None = None,
    sampling: dict[str, float | int] | None = None,
    wait: str = "ready",
    routes: tuple[Route, ...] = ROUTES,
    limits: Limits = LIMITS,
    health: socket.socket | None = None,
    at: int = 0,
    source: Path | None = None,
    need: NeedOf = lambda settings, budget, n_models: Need(1, 1),
    **options: Any,
) -> Iterator[Live]:
    """Serve with these Settings; `wait` is the engine state to wait for, `at` the port (0: any free one).

    `source` is what receipts take for the model's file. `need` is the memory that each of several models takes.
    """
    one = {} if "models" in options else {"model": "fake", "served_model_name": ("fake", "org/alias")}
    settings = Settings(**{"log_format": "json", **one, **options})
    hosts: list[EngineThread] = []

    def host() -> EngineThread:
        hosts.append(EngineThread("tests.fakes:create_fake"))
        return hosts[-1]

    async def load(settings: Settings, client: EngineClient) -> ServedModel:
        limits = {"max_sequences": settings.max_sequences, "max_step_tokens": settings.max_step_tokens}
        options = {"model": settings.model, "max_model_len": settings.max_model_len}
        await client.start({**options, **limits})
        assert client.info is not None
        defaults = GenerationDefaults((END,), sampling or {})
        names = settings.names
        tokens = tokenizer or IntegerTokenizer()
        format_: Any = FakeChat() if chat is True else chat or None
        marks = marks_of(settings, format_, tokens)
        return ServedModel(
            names,
            tokens,
            format_,
            defaults,
            longest_piece(tokens),
            client.info,
            marks,
            settings.reasoning_budget,
            settings.read_repetition(),
            source=None if source is None else (source, stamp(network_files(source))),
        )

    clients: dict[str, EngineClient] = {}
    metrics, entries = Metrics(), read_entries(settings)

    def client_of(entry: ModelEntry) -> EngineClient:
        of_model = metrics.of_model(entry.name)
        clients[entry.name] = EngineClient(
            host,
            name=entry.name,
            step_timeout=entry.settings.step_timeout,
            continues=entry.settings.on_engine_loss == "continue",
            on_report=of_model.observe_report,
            on_beat=of_model.observe_beat,
            on_restart=of_model.observe_restart,
            on_continue=of_model.observe_continued,
        )
        return clients[entry.name]

    keys = Keys(settings.api_keys, settings.api_key_file)
    uds = settings.uds
    with (
        mock.patch.object(protocol, "LIMITS", limits),
        mock.patch("gc.unfreeze"),  # an unload would look at all that the tests have imported, which takes a second
        listen(settings.address[0], at) if uds is None else listen_at(uds) as sock,
    ):
        port = None if uds else sock.getsockname()[1]
        transport = httpx.HTTPTransport(uds=str(uds)) if uds else None
        server = create_server(
            settings, entries, client_of, metrics, sock, keys, load=load, routes=routes, health=health, need=need
        )
        thread = threading.Thread(target=server.run, args=[[sock]])
        thread.start()
        try:
            scheme = "http" if settings.ssl_certfile is None else "https"
            url = f"{scheme}://127.0.0.1:{port}" if port else "http://localhost"
            with httpx.Client(base_url=url, timeout=PATIENCE, transport=transport, verify=False) as http:
                eventually(lambda: entries[0].name in clients, "the application has begun")
                client = clients[entries[0].name]
                live = Live(server, client, keys, hosts, http, thread.is_alive, settings.models)
                if wait == "ready":
                    eventually(lambda: ready(http), wait)
                else:
                    eventually(lambda: client.state == wait, wait)
                yield live
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive(), "the server did not stop"


def ready(http: httpx.Client) -> bool:
    return http.get("/ready").status_code == 200


LONG = {"prompt": "long", "max_tokens": 3000}
"""A request that runs for a minute with the model "slow"."""


def idle(live: Live) -> Callable[[], bool]:
    return lambda: live.metric("noria_requests_running") == 0 and live.metric("noria_requests_waiting") == 0


def busy(live: Live, n: int = 1) -> Callable[[], bool]:
    return lambda: live.metric("noria_requests_running") + live.metric("noria_requests_waiting") >= n


@contextlib.contextmanager
def begun(live: Live, **body: Any) -> Iterator[Iterator[str]]:
    """The lines of a stream that has given its first chunk. It is sent with the key of `live.http`."""
    with (
        httpx.Client(base_url=live.url, timeout=PATIENCE, headers=live.http.headers) as http,
        http.stream("POST", "/v1/completions", json={**LONG, **body, "stream": True}) as response,
    ):
        assert response.status_code == 200
        lines = response.iter_lines()
        assert next(lines).startswith("data: {")
        yield lines


@contextlib.contextmanager
def hurried() -> Iterator[None]:
    """Until the block ends "slow" and "large" are fast. What a test does before happens during an answer or a load."""
    HURRY.set()
    try:
        yield
    finally:
        HURRY.clear()


def remaining(lines: Iterator[str]) -> list[str]:
    """The data of a stream's events, to its end."""
    return [line.removeprefix("data: ") for line in lines if line]


@contextlib.contextmanager
def sent(address: tuple[str, int] | str, **body: Any) -> Iterator[None]:
    """A client that asks for LONG at an address or a Unix socket's path, reads nothing, and leaves after the block."""
    content = json.dumps({**LONG, **body}).encode()
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as connection:
        connection.connect(address)
        connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
        yield


USER = [{"role": "user", "content": "hi"}]


def refused(live: Live, path: str, body: Any, status: int = 400) -> dict[str, Any]:
    """The error that a request gets."""
    response = live.post(path, body)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert "\n" not in error["message"]
    return error
