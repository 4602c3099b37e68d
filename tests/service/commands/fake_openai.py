"""A fake OpenAI server: it streams the given pieces and records all requests."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse


@dataclass
class FakeOpenAI:
    """`usage` of each answer (None: the server reports none); `fails` maps the nth request to a status."""

    pieces: tuple[str, ...] = ("a", "b", "c", "d")
    thoughts: tuple[str, ...] = ()
    usage: dict[str, Any] | None = field(default_factory=lambda: {"prompt_tokens": 10, "completion_tokens": 4})
    delay: float = 0.0
    fails: dict[int, int] = field(default_factory=dict)
    break_stream: str = ""  # "error": an error event; "cut": no [DONE]
    vanish: threading.Event = field(default_factory=threading.Event)  # once set, connections break in mid-answer
    key: str | None = None
    models: tuple[str, ...] = ("fake-1",)
    finish_reason: str = "length"
    requests: list[dict[str, Any]] = field(default_factory=list)
    in_flight: int = 0
    max_in_flight: int = 0
    closed_early: threading.Event = field(default_factory=threading.Event)

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.get("/v1/models")
        async def models() -> dict[str, Any]:
            return {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]}

        @app.post("/v1/completions")
        @app.post("/v1/chat/completions")
        async def complete(request: Request) -> Any:
            body = await request.json()
            self.requests.append(body)
            if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
                return JSONResponse({"error": {"message": "wrong key"}}, 401)
            if status := self.fails.get(len(self.requests)):
                return JSONResponse({"error": {"message": f"told to fail with {status}"}}, status)
            return StreamingResponse(self._stream("messages" in body), media_type="text/event-stream")

        return app

    async def _stream(self, chat: bool) -> AsyncIterator[str]:
        self.in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self.in_flight)
        try:
            for event in self._events(chat):
                yield f"data: {json.dumps(event)}\n\n"
                await asyncio.sleep(self.delay)
                if self.vanish.is_set():
                    raise ConnectionAbortedError("told to vanish")
            if self.break_stream != "cut":
                yield "data: [DONE]\n\n"
        except asyncio.CancelledError:
            self.closed_early.set()
            raise
        finally:
            self.in_flight -= 1

    def _events(self, chat: bool) -> Iterator[dict[str, Any]]:
        if chat:
            yield {"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}
        for thought in self.thoughts:
            yield {"choices": [{"index": 0, "finish_reason": None, "delta": {"reasoning_content": thought}}]}
        for piece in self.pieces:
            text = {"delta": {"content": piece}} if chat else {"text": piece}
            yield {"choices": [{"index": 0, "finish_reason": None} | text]}
        if self.break_stream == "error":
            yield {"error": {"message": "the engine died"}}
            return
        last: dict[str, Any] = {"delta": {}} if chat else {"text": ""}
        yield {"choices": [{"index": 0, "finish_reason": self.finish_reason} | last]}
        if self.usage is not None:
            yield {"choices": [], "usage": self.usage}


@contextmanager
def serving(fake: FakeOpenAI) -> Iterator[str]:
    """The fake on a free port of 127.0.0.1; its address."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(fake.app(), log_level="error", ws="none", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        sock.close()
