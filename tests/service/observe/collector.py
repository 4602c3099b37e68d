"""A stand-in for an OpenTelemetry collector: an HTTP server that decodes OTLP's protobuf."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.waiting import PATIENCE


@dataclass(frozen=True)
class Sent:
    """One span as it came over the wire. Ids are hexadecimal, times in seconds since 1970."""

    name: str
    trace: str
    id: str
    parent: str
    kind: int
    start: float
    end: float
    status: int
    attributes: dict[str, Any]
    resource: dict[str, Any]


class FakeCollector(ThreadingHTTPServer):
    """Takes traces, and answers with `status`. While `open` is not set, senders wait; `waiting` counts them."""

    waiting = 0
    status = 200

    def __init__(self) -> None:
        self.batches: SimpleQueue[list[Sent]] = SimpleQueue()
        self.paths: list[str] = []
        self.open = Event()
        self.open.set()
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def spans(self) -> list[Sent]:
        """All spans that have come since the last call."""
        found: list[Sent] = []
        while not self.batches.empty():
            found += self.batches.get()
        return found


class _Handler(BaseHTTPRequestHandler):
    server: FakeCollector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.waiting += 1
        self.server.open.wait(PATIENCE)
        self.server.paths.append(self.path)
        self.server.batches.put(list(_decoded(ExportTraceServiceRequest.FromString(body))))
        self.send_response(self.server.status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


def _decoded(request: Any) -> Iterator[Sent]:
    for group in request.resource_spans:
        resource = _attributes(group.resource.attributes)
        for scope in group.scope_spans:
            for span in scope.spans:
                yield Sent(
                    span.name,
                    span.trace_id.hex(),
                    span.span_id.hex(),
                    span.parent_span_id.hex(),
                    span.kind,
                    span.start_time_unix_nano / 1e9,
                    span.end_time_unix_nano / 1e9,
                    span.status.code,
                    _attributes(span.attributes),
                    resource,
                )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(item) for item in value.array_value.values] if kind == "array_value" else getattr(value, kind)


@contextmanager
def collecting() -> Iterator[FakeCollector]:
    collector = FakeCollector()
    thread = Thread(target=collector.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        collector.open.set()
        collector.shutdown()
        collector.server_close()
        thread.join()
