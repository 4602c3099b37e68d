"""Traces against a collector: ids, parents, times, attributes; collectors that are dead, slow or unwilling."""

import json
import logging
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import client_attributes, error_attributes, http_attributes, url_attributes

from model.errors import OptionError
from service.access.record import RequestRecord
from service.logs import JsonFormatter
from service.observe.tracing import Phase, phases
from service.settings import Settings
from tests.service.live import Live, begun, running
from tests.service.observe.collector import FakeCollector, Sent, collecting
from tests.waiting import eventually

INTERNAL, SERVER = 1, 2  # of opentelemetry.proto.trace.v1.Span.SpanKind
UNSET, ERROR = 0, 2  # of opentelemetry.proto.trace.v1.Status.StatusCode
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "my-secret-text"
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def collector() -> Iterator[FakeCollector]:
    with pytest.MonkeyPatch.context() as patch, collecting() as collector:
        patch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")  # milliseconds until a batch is sent
        yield collector


@pytest.fixture(scope="module")
def traced(collector: FakeCollector) -> Iterator[Live]:
    with running(model="slow", otlp_endpoint=collector.url, max_sequences=1) as live:
        yield live


@pytest.fixture
def trace_of(collector: FakeCollector, traced: Live) -> Callable[[Callable[[], Any]], dict[str, Sent]]:
    """The spans of what one call requests, by name; the server's is "server"."""

    def spans(act: Callable[[], Any]) -> dict[str, Sent]:
        collector.spans()
        act()
        found: list[Sent] = []

        def arrived() -> bool:
            found.extend(collector.spans())
            return any(span.kind == SERVER for span in found)

        eventually(arrived, "a server span")
        assert len({span.trace for span in found}) == 1
        return {"server" if span.kind == SERVER else span.name: span for span in found}

    return spans


TraceOf = Callable[[Callable[[], Any]], dict[str, Sent]]


def test_a_request_is_a_server_span_with_its_phases(traced: Live, trace_of: TraceOf) -> None:
    body = {"max_tokens": 5, "temperature": 0.5, "seed": 7, "n": 2, "top_k": 3, "stop": ["never"]}
    before = time.time()
    spans = trace_of(lambda: traced.chat("hi", **body))
    after = time.time()
    server = spans.pop("server")
    assert server.name == "POST /v1/chat/completions"
    assert server.parent == ""
    assert server.status == UNSET
    assert before <= server.start < server.end <= after
    wanted = {
        "http.request.method": "POST",
        "http.route": "/v1/chat/completions",
        "http.response.status_code": 200,
        "url.path": "/v1/chat/completions",
        "url.scheme": "http",
        "client.address": "127.0.0.1",
        "noria.outcome": "length",
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "noria",
        "gen_ai.request.model": "fake",
        "gen_ai.response.model": "fake",
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.request.top_k": 3,
        "gen_ai.request.max_tokens": 5,
        "gen_ai.request.seed": 7,
        "gen_ai.request.presence_penalty": 0.0,
        "gen_ai.request.frequency_penalty": 0.0,
        "gen_ai.usage.input_tokens": 7,
        "gen_ai.usage.output_tokens": 10,
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.response.finish_reasons": ["length", "length"],
    }
    assert len(server.attributes.pop("noria.request.id")) == 32
    assert server.attributes == wanted
    assert {"service.name": "noria"}.items() <= server.resource.items()
    assert set(spans) == {"queue", "prompt", "decode"}
    assert {span.parent for span in spans.values()} == {server.id}
    assert {span.kind for span in spans.values()} == {INTERNAL}
    queue, prompt, decode = spans["queue"], spans["prompt"], spans["decode"]
    assert server.start <= queue.start <= queue.end == prompt.start < prompt.end == decode.start < decode.end
    assert decode.end <= server.end
    assert decode.end - decode.start >= 4 * 0.02, "four steps of 20 ms come after the first token"


def test_the_names_are_those_of_the_conventions(traced: Live, trace_of: TraceOf) -> None:
    modules = (gen_ai_attributes, http_attributes, url_attributes, client_attributes, error_attributes)
    known = {value for module in modules for value in vars(module).values() if isinstance(value, str)}
    spans = trace_of(lambda: traced.events("/v1/completions", {"prompt": "abc", "max_tokens": 2}))
    names = {name for name in spans["server"].attributes if not name.startswith("noria.")}
    assert names <= known


def test_the_trace_of_the_client_goes_on(traced: Live, trace_of: TraceOf, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="noria")
    header = {"traceparent": f"00-{TRACE}-{PARENT}-01"}
    spans = trace_of(lambda: traced.http.get("/v1/models", headers=header))
    assert set(spans) == {"server"}
    assert (spans["server"].trace, spans["server"].parent) == (TRACE, PARENT)
    eventually(lambda: access_lines(caplog), "a line in the log")
    assert [line["trace"] for line in access_lines(caplog)] == [TRACE]


def access_lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(JsonFormatter().format(line)) for line in caplog.records if line.name == "noria.access"]


def test_what_the_client_does_not_sample_is_not_sent(traced: Live, trace_of: TraceOf) -> None:
    def act() -> None:
        traced.http.get("/version", headers={"traceparent": f"00-{TRACE}-{PARENT}-00"})
        traced.http.get("/metrics")
        traced.http.get("/ready")
        traced.http.get("/v1/models", headers={"traceparent": "nonsense"})

    server = trace_of(act)["server"]  # they would have come before it
    assert server.attributes["http.route"] == "/v1/models"
    assert (server.trace != TRACE, server.parent) == (True, "")


def test_a_stream(traced: Live, trace_of: TraceOf) -> None:
    spans = trace_of(lambda: traced.events("/v1/completions", {"prompt": "abc", "max_tokens": 6}))
    server, decode = spans["server"], spans["decode"]
    assert server.attributes["gen_ai.operation.name"] == "text_completion"
    assert server.attributes["gen_ai.request.stream"] is True
    first = server.attributes["gen_ai.response.time_to_first_chunk"]
    assert spans["prompt"].end == pytest.approx(server.start + first, abs=1e-5)
    assert decode.end - decode.start >= 5 * 0.02


def test_a_client_that_leaves_in_the_middle(traced: Live, trace_of: TraceOf) -> None:
    def act() -> None:
        with begun(traced):
            pass

    spans = trace_of(act)
    server = spans["server"]
    assert server.attributes["noria.outcome"] == "abort"
    assert "http.response.status_code" not in server.attributes
    assert "gen_ai.response.finish_reasons" not in server.attributes
    assert server.status == spans["decode"].status == UNSET
    assert server.attributes["gen_ai.usage.output_tokens"] >= 1
    assert spans["decode"].end <= server.end


def test_a_request_that_ends_in_the_queue(traced: Live, trace_of: TraceOf, collector: FakeCollector) -> None:
    """`timeout` ends a request that waits behind another one: it has a queue span and no other."""
    with begun(traced):
        spans = trace_of(lambda: traced.complete(prompt="waits", timeout=0.2))
        assert set(spans) == {"server", "queue"}
        assert spans["queue"].end == pytest.approx(spans["server"].end, abs=1e-5)
        assert spans["server"].attributes["noria.outcome"] == "timeout"
    eventually(lambda: any(span.kind == SERVER for span in collector.spans()), "the span of the other one")


def test_a_request_that_fails(traced: Live, trace_of: TraceOf) -> None:
    spans = trace_of(lambda: traced.post("/v1/completions", {"prompt": [1, 255]}))
    server = spans["server"]
    assert server.attributes["http.response.status_code"] == 500
    assert server.attributes["error.type"] == "ApiError"
    assert server.status == ERROR
    assert {"queue", "server"} <= set(spans) <= {"queue", "prompt", "server"}


def test_a_stream_that_breaks(collector: FakeCollector) -> None:
    """The status was 200, and the trace says that the answer failed."""
    with running(model="slow", otlp_endpoint=collector.url, on_engine_loss="error") as live:
        collector.spans()
        with begun(live) as lines:
            live.hosts[-1].kill()
            assert "engine_died" in "".join(lines)
        assert live.metric("noria_broken_streams_total") == 1
    spans = {span.name: span for span in collector.spans()}  # the server has sent them before it stopped
    server = spans["POST /v1/completions"]
    assert server.attributes["http.response.status_code"] == 200
    assert server.attributes["error.type"] == "EngineDied"
    assert server.status == spans["decode"].status == ERROR
    assert spans["queue"].status == spans["prompt"].status == UNSET


def test_refusals_have_no_phases(traced: Live, trace_of: TraceOf) -> None:
    refused = trace_of(lambda: traced.post("/v1/completions", {"prompt": "hi", "temperature": 9}))
    assert set(refused) == {"server"}
    assert refused["server"].status == UNSET  # the client's mistake is no error of the server
    unknown = trace_of(lambda: traced.http.get(f"/{SECRET}"))["server"]
    assert (unknown.name, unknown.attributes["http.response.status_code"]) == ("GET", 404)
    assert "http.route" not in unknown.attributes


def test_no_text_of_anybody(traced: Live, trace_of: TraceOf) -> None:
    body = {"stop": [SECRET], "user": SECRET, "max_tokens": 4}
    texts: list[str] = []
    chat = trace_of(lambda: texts.append(traced.chat(SECRET, **body)["choices"][0]["message"]["content"]))
    assert len(texts[0]) == 4
    whole = repr([(span.name, span.attributes, span.resource) for span in chat.values()])
    assert SECRET not in whole
    assert texts[0] not in whole


def test_embeddings_sample_nothing(traced: Live, trace_of: TraceOf) -> None:
    server = trace_of(lambda: traced.post("/v1/embeddings", {"input": ["a", "bc"]}))["server"]
    assert {name for name in server.attributes if name.startswith("gen_ai.")} == {
        *("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model"),
        "gen_ai.usage.input_tokens",
    }
    assert server.attributes["gen_ai.usage.input_tokens"] == 3


def test_a_collector_that_hangs_delays_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "4")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "2")
    with collecting() as collector:
        collector.open.clear()
        with running(otlp_endpoint=collector.url) as live:
            live.complete(prompt="hi", max_tokens=1)
            eventually(lambda: collector.waiting, "the collector has got a batch")
            for _ in range(10):  # more than the queue holds
                live.complete(prompt="hi", max_tokens=1)
            assert collector.paths == []
            collector.open.set()
        assert set(collector.paths) == {"/v1/traces"}


def test_the_end_does_not_wait_for_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")
    monkeypatch.setattr("service.observe.tracing.FLUSH_SECONDS", 0.1)
    with collecting() as collector:
        collector.open.clear()
        with running(otlp_endpoint=collector.url) as live:
            live.complete(prompt="hi", max_tokens=1)
        eventually(lambda: collector.waiting, "the collector has got a batch")
        assert collector.paths == [], "the server has waited"


def test_lost_traces_are_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """By the SDK: the collector fails, then it takes the next trace."""
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
    with collecting() as collector, running(otlp_endpoint=f"{collector.url}/v1/traces") as live:
        collector.status = 500
        live.http.get("/version")
        eventually(lambda: [line for line in messages(caplog) if "500" in line], "a line about the collector")
        collector.status = 200
        live.http.get("/version")
        assert collector.spans()
        assert set(collector.paths) == {"/v1/traces"}, "a path that is there is not added again"


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in [*caplog.records] if record.name.startswith("opentelemetry.exporter")]


def test_the_operators_variables_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.version=9")
    with collecting() as collector:
        with running(otlp_endpoint=collector.url) as live:
            live.http.get("/version")
        (span,) = collector.spans()
    wanted = {"service.name": "mine", "service.version": "9", "deployment.environment.name": "test"}
    assert wanted.items() <= span.resource.items()


def test_without_the_flag_nothing_is_imported() -> None:
    code = (
        "import sys\nfrom tests.service.live import running\n"
        "with running() as live: live.complete(prompt='hi')\n"
        "own = ('opentelemetry.sdk', 'opentelemetry.exporter', 'service.observe.tracing')  # FastAPI imports the API\n"
        "assert not [name for name in sys.modules if name.startswith(own)]"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_framework_sends_nothing_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """FastAPI has traces and logs too, which variables turn on. They would hold text of clients."""
    monkeypatch.setenv("FASTAPI_OTEL_AUTO_CONFIGURE", "true")
    with collecting() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        with running() as live:
            live.complete(prompt="hi")
        assert collector.waiting == 0, "it sends what it has before the server ends"


@pytest.mark.parametrize(
    "url", ["collector:4318", "ftp://a", "http://", "http://a:0", "http://a:x", "http://a/?b=c", ""]
)
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(OptionError, match=r"^--otlp-endpoint must be an http or https URL such as .*, got '.*'$"):
        Settings(otlp_endpoint=url).check()


@pytest.mark.parametrize("missing", ["opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter.otlp.proto"])
def test_without_the_packages_the_flag_is_refused(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for name in [name for name in sys.modules if name == missing or name.startswith(f"{missing}.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["otel"]
    names = sorted((line.partition(">")[0] for line in declared), reverse=True)
    with pytest.raises(OptionError, match=f"pip install {' '.join(names)}$"):  # "noria" of the index is another project
        Settings(otlp_endpoint="http://127.0.0.1:4318").check()


@pytest.mark.parametrize("otlp_endpoint", ["http://127.0.0.1:4318", None])
def test_a_propagator_that_is_not_installed(otlp_endpoint: str | None) -> None:
    """Clusters set the variable for every container. Without traces it must not matter."""
    code = (
        "import service.commands.serve as serve\nfrom service.settings import Settings\n"
        "serve.listen = lambda *_: exit(__import__('fastapi').__name__)\n"
        f"serve.run(Settings(otlp_endpoint={otlp_endpoint!r}))"
    )
    environment = {**os.environ, "OTEL_PROPAGATORS": "b3"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment)
    last = done.stderr.strip().splitlines()[-1]
    if otlp_endpoint is None:
        assert last == "fastapi"
    else:
        assert "OptionError: --otlp-endpoint: OTEL_PROPAGATORS has a wrong value: Propagator b3 not found" in last


def test_a_variable_of_opentelemetry_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "-5")
    with (
        pytest.raises(OptionError, match=r"^--otlp-endpoint: a variable OTEL_\* has a wrong value: schedule_delay"),
        running(otlp_endpoint="http://127.0.0.1:4318"),
    ):
        pass


def test_phases_of_a_request_that_ends_early() -> None:
    record = RequestRecord("id", "POST", "/", "/", None, started=10.0)  # type: ignore[arg-type]
    assert list(phases(record, 20.0)) == []
    record.submitted = 11.0
    assert list(phases(record, 20.0)) == [Phase("queue", 11.0, 20.0)]
    record.generation.queue_seconds = 2.0
    assert list(phases(record, 20.0)) == [Phase("queue", 11.0, 13.0), Phase("prompt", 13.0, 20.0)]
    record.generation.first_token_seconds = 5.0
    assert list(phases(record, 20.0))[1:] == [Phase("prompt", 13.0, 15.0), Phase("decode", 15.0, 20.0)]
    record.generation.last_token = 18.0
    assert list(phases(record, 20.0))[-1] == Phase("decode", 15.0, 18.0)
    record.generation.queue_seconds = 6.0  # the engine's clock may be ahead: no phase ends before it begins
    assert [phase.end - phase.start >= 0 for phase in phases(record, 20.0)] == [True] * 3
