"""OpenTelemetry traces: a server span for each request, with a span for each of its phases.

Only `--otlp-endpoint` imports this file: it needs the packages of the extra `otel`. A trace is made when its request
has ended, from the request's record. A thread of the SDK sends it, and logs when it
cannot. It has no text of any client.
"""

import time
from collections.abc import Iterator, Mapping
from threading import Thread
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from opentelemetry import propagate
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer, format_trace_id, set_span_in_context
from starlette.types import Scope

from service import version
from service.access.record import CLIENT_GONE, RequestRecord

PATH = "/v1/traces"
FLUSH_SECONDS = 3.0
"""Time at the end of the server to send the last traces. A collector that does not answer may hold up no longer."""
SAMPLING = ("temperature", "top_p", "top_k", "max_tokens", "seed", "presence_penalty", "frequency_penalty")
"""Sampling parameters that the GenAI conventions name."""


class Phase(NamedTuple):
    """A part of a request, from `start` to `end` by perf_counter."""

    name: str
    start: float
    end: float


class Tracing:
    """The maker of traces. A thread sends them to the collector at `url`."""

    def __init__(self, url: str) -> None:
        endpoint = url if urlsplit(url).path.endswith(PATH) else url.rstrip("/") + PATH
        # What the operator's OTEL_* variables say about the resource comes before what we say.
        given = OTELResourceDetector().detect().attributes
        resource = Resource.create({"service.name": "noria", "service.version": version(), **given})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))
        self._tracer = self._provider.get_tracer("noria", version())

    def trace(self, record: RequestRecord, scope: Scope, ended: float) -> str | None:
        """Make the trace of a request; returns its id. `traceparent` and `tracestate` of the client are honoured.

        None: `OTEL_SDK_DISABLED` turns traces off, and the client has none either.
        """
        clock = time.time_ns() - int(time.perf_counter() * 1e9)  # perf_counter 0 as a time of day
        carrier = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        span = self._tracer.start_span(
            f"{record.method} {record.route}" if record.route else record.method,
            propagate.extract(carrier),
            SpanKind.SERVER,
            _attributes(record, scope),
            start_time=clock + int(record.started * 1e9),
        )
        if span.is_recording():
            for phase in phases(record, ended):
                _child(self._tracer, span, phase, clock, failed=phase.end == ended and _failed(record))
            if _failed(record):
                span.set_attribute("error.type", record.failure or str(record.status))
                span.set_status(Status(StatusCode.ERROR))
            span.end(clock + int(ended * 1e9))
        context = span.get_span_context()
        return format_trace_id(context.trace_id) if context.is_valid else None

    def close(self) -> None:
        """Send what waits, for `FLUSH_SECONDS` at most. Blocks, so never on the event loop."""
        flush = Thread(target=self._provider.shutdown, name="noria-traces", daemon=True)
        flush.start()
        flush.join(FLUSH_SECONDS)


def phases(record: RequestRecord, ended: float) -> Iterator[Phase]:
    """Yield the phases that a request reached: "queue", "prompt" and "decode". Its end cuts the last one short.

    Of several choices the earliest times begin and end a phase, and the last token of all ends "decode".
    """
    if record.submitted is None:
        return
    facts = record.generation
    queued = ended if facts.queue_seconds is None else min(ended, record.submitted + facts.queue_seconds)
    yield Phase("queue", record.submitted, queued)
    if facts.queue_seconds is None:
        return
    waited = facts.first_token_seconds
    first = ended if waited is None else record.started + record.load_seconds + waited
    yield Phase("prompt", min(queued, first), first)
    if facts.first_token_seconds is not None:
        broken = record.outcome == "error" or facts.last_token is None
        yield Phase("decode", first, ended if broken else max(first, facts.last_token or first))


def _child(tracer: Tracer, parent: Span, phase: Phase, clock: int, *, failed: bool) -> None:
    span = tracer.start_span(phase.name, set_span_in_context(parent), start_time=clock + int(phase.start * 1e9))
    if failed:
        span.set_status(Status(StatusCode.ERROR))
    span.end(clock + int(phase.end * 1e9))


def _failed(record: RequestRecord) -> bool:
    return record.outcome == "error" or (record.status or 0) >= 500


def _attributes(record: RequestRecord, scope: Scope) -> Mapping[str, Any]:
    """Return attributes by the conventions for HTTP servers and for GenAI, and our own names beyond these.

    They are numbers and names, no text.
    """
    found: dict[str, Any] = {
        "http.request.method": record.method,
        "http.route": record.route,
        "http.response.status_code": None if record.status == CLIENT_GONE else record.status,
        "url.path": record.path,
        "url.scheme": scope.get("scheme"),
        "client.address": record.client,
        "noria.request.id": record.id,
        "noria.key": record.tenant or None,
        "noria.outcome": record.outcome,
    }
    if record.policy.generates and record.model is not None:
        found |= {
            "gen_ai.operation.name": record.policy.operation,
            "gen_ai.provider.name": "noria",
            "gen_ai.request.model": record.model,
            "gen_ai.response.model": record.model,
            "gen_ai.usage.input_tokens": record.prompt_tokens,
        }
        if record.policy.operation != "embeddings":  # they sample no tokens
            found |= _of_answer(record)
    return {name: value for name, value in found.items() if value is not None}


def _of_answer(record: RequestRecord) -> dict[str, Any]:
    return {
        "gen_ai.request.stream": record.streams or None,
        "gen_ai.request.choice.count": record.n_choices if record.n_choices > 1 else None,
        **{f"gen_ai.request.{name}": getattr(record.params, name, None) for name in SAMPLING},
        "gen_ai.usage.output_tokens": record.generation.generated_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.generation.cached_tokens,
        "gen_ai.usage.reasoning.output_tokens": record.generation.reasoning_tokens or None,
        "gen_ai.response.finish_reasons": record.generation.finishes or None,
        "gen_ai.response.time_to_first_chunk": record.generation.first_token_seconds if record.streams else None,
    }
