"""Observation from outside: probes, models, tokens, metrics, logs."""

import asyncio
import json
import logging
import platform
import resource
import time
from importlib import metadata

import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from model.options import STEP_LIMITS
from service.app import ROUTES
from service.engine.messages import Beat, Report, Stats
from service.engine.picture import PoolPages
from service.logs import JsonFormatter
from service.observe.metrics import Metrics
from tests.fakes import VOCAB
from tests.service.live import Live, begun, hurried, ready, running
from tests.waiting import eventually

SECRET = "my-secret-prompt"


def test_while_loading_only_life_is_certain() -> None:
    with running(model="large", wait="loading") as live:
        assert live.http.get("/live").status_code == 200
        response = live.http.get("/ready")
        assert response.status_code == 503
        assert response.json() == {"status": "loading", "stage": "loading weights", "progress": 0.5}
        assert live.http.get("/health").status_code == 503
        for method, path in [("GET", "/v1/models"), ("POST", "/v1/completions"), ("POST", "/tokenize")]:
            response = live.http.request(method, path, json={"prompt": "hi"})
            assert response.status_code == 503
            assert "retry-after" in response.headers
        with hurried():
            eventually(lambda: ready(live.http), "it is loaded")


def test_version(live: Live) -> None:
    reply = live.http.get("/version").json()
    assert reply["version"]
    assert reply["engine"] == {"device": "fake", "attention": "fake"}


def test_tokenize_and_back(live: Live) -> None:
    reply = live.post("/tokenize", {"prompt": "hi<end>"}).json()
    assert reply == {"count": 3, "max_model_len": 512, "tokens": [104, 105, 0], "token_strs": None}
    reply = live.post("/tokenize", {"prompt": "hi<end>", "model": "fake", "return_token_strs": True}).json()
    assert reply["token_strs"] == ["h", "i", "<end>"]
    assert live.post("/detokenize", {"tokens": [104, 105, 0]}).json() == {"prompt": "hi<end>", "content": "hi<end>"}


TOOL = {"type": "function", "function": {"name": "f"}}


def test_tools_are_tokenized_as_chat_does(live: Live) -> None:
    body = {"messages": [{"role": "user", "content": "hi"}], "tools": [TOOL]}
    answer = live.post("/v1/chat/completions", {**body, "max_tokens": 1, "return_token_ids": True}).json()
    assert live.post("/tokenize", body).json()["tokens"] == answer["prompt_token_ids"]
    text = live.post("/apply-template", body).json()["prompt"]
    assert list(text.encode()) == answer["prompt_token_ids"]
    assert '"name": "f"' in text


def test_tokenize_as_llama_cpp_does(live: Live) -> None:
    """A piece is text, or bytes where it is a part of a character."""
    body = {"content": "hé<end>", "with_pieces": True, "add_special": False, "parse_special": True}
    assert live.post("/tokenize", body).json()["tokens"] == [
        {"id": 104, "piece": "h"},
        {"id": 195, "piece": [195]},
        {"id": 169, "piece": [169]},
        {"id": 0, "piece": "<end>"},
    ]
    assert live.post("/tokenize", {"content": "hi"}).json()["tokens"] == [104, 105]


def test_apply_template(live: Live) -> None:
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
    assert live.post("/apply-template", {"messages": messages}).json() == {"prompt": "s:be;u:hi;a:"}
    closed = live.post("/apply-template", {"messages": messages, "add_generation_prompt": False})
    assert closed.json() == {"prompt": "s:be;u:hi;"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/apply-template", {}, "messages"),
        ("/apply-template", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "a", "add_special": True}, "add_special"),
        ("/tokenize", {"content": "a", "add_special_tokens": True}, "content"),
        ("/tokenize", {"content": "a", "prompt": "a"}, "prompt"),
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "a", "add_generation_prompt": True}, "add_generation_prompt"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "a"}], "add_special_tokens": True},
            "add_special_tokens",
        ),
        ("/tokenize", {"prompt": "a", "tools": [TOOL]}, "tools"),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "tools": [TOOL, TOOL]}, "tools"),
        ("/tokenize", {"prompt": "a", "color": "red"}, "color"),
        ("/detokenize", {"tokens": [VOCAB]}, "tokens"),
        ("/detokenize", {"tokens": [0, -1]}, "tokens"),
        ("/detokenize", {"tokens": [10**400]}, "tokens"),
        ("/detokenize", {"tokens": [1] * 513}, "tokens"),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
def test_tokenize_refusals(live: Live, path: str, body: dict[str, object], param: str) -> None:
    response = live.post(path, body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_request_ids_come_back_when_harmless(live: Live) -> None:
    assert live.http.get("/live", headers={"x-request-id": "abc-123"}).headers["x-request-id"] == "abc-123"
    for bad in ("a b", "x" * 129, "a\tb", ""):
        echoed = live.http.get("/live", headers={"x-request-id": bad}).headers["x-request-id"]
        assert len(echoed) == 32


def test_metrics_after_requests() -> None:
    with running() as live:
        live.complete(prompt="a" * 40, max_tokens=5)
        live.complete(prompt=["a" * 40, "bb"], n=2, max_tokens=3)
        live.complete(prompt="stop", max_tokens=50, stop_token_ids=list(range(33, 123)))
        live.post("/v1/completions", {"prompt": ""})
        live.http.post("/v1/chat/completions", content=b"{")
        eventually(lambda: live.metric("noria_requests_running") == 0, "idle")
        assert live.metric("noria_requests_waiting") == 0
        outcomes = {name: live.metric("noria_requests_total", outcome=name) for name in ("stop", "length", "refused")}
        assert outcomes == {"stop": 1, "length": 2, "refused": 2}
        assert live.metric("noria_prompt_tokens_total") == 40 + 42 + 4
        assert live.metric("noria_generated_tokens_total") == 5 + 12 + 1
        assert live.metric("noria_prefix_cache_queried_tokens_total") > 0
        assert live.metric("noria_prefix_cache_hit_tokens_total") >= 32  # two whole pages of "a", met again
        assert live.metric("noria_preemptions_total") == 0
        assert live.metric("noria_engine_restarts_total") == 0
        pages = {
            state: live.metric("noria_kv_pages", window="full", state=state) for state in ("held", "cached", "free")
        }
        assert pages["held"] == 0
        assert sum(pages.values()) == 512
        assert live.metric("noria_kv_usage_ratio") == 0
        assert live.metric("noria_time_to_first_token_seconds_count") == 6
        assert live.metric("noria_queue_seconds_count") == 6
        assert live.metric("noria_inter_token_seconds_count") == 18 - 6
        assert live.metric("noria_request_seconds_count") == 3
        assert live.metric("noria_step_tokens_count") > 0
        assert live.metric("noria_step_tokens_sum") >= 18
        assert live.metric("process_open_fds") > 0


def test_responses_by_route() -> None:
    """Clients choose paths and methods, and so these must not make series of their own."""
    with running(api_keys=("secret",)) as live:
        live.http.get("/v1/models")  # without a key
        live.http.headers["authorization"] = "Bearer secret"
        live.complete(prompt="hi", max_tokens=1)
        live.post("/v1/completions", {"prompt": "hi", "temperature": 9})
        live.http.get("/v1/models/org/alias")
        live.http.get("/v1/models/none")
        live.http.get("/v1/completions")
        for path in ("/a", "/b", "/v1/completions/x"):
            live.http.get(path)
        live.http.request("PURGE", "/version")
        text = live.http.get("/metrics").text
    lines = [line for line in text.splitlines() if line.startswith("noria_http_requests_total{")]
    found = {line.partition("{")[2] for line in lines if 'route="/ready"' not in line and not line.endswith(" 0.0")}
    assert found == {
        'method="GET",route="/v1/models",status="401"} 1.0',
        'method="POST",route="/v1/completions",status="200"} 1.0',
        'method="POST",route="/v1/completions",status="400"} 1.0',
        'method="GET",route="/v1/models/{name:path}",status="200"} 1.0',
        'method="GET",route="/v1/models/{name:path}",status="404"} 1.0',
        'method="GET",route="/v1/completions",status="405"} 1.0',
        'method="GET",route="other",status="404"} 3.0',
        'method="other",route="/version",status="405"} 1.0',
    }


def test_failures_of_a_route_are_counted_from_0() -> None:
    """`rate()` takes the first sample of a series for its beginning: without a 0 the first failures are not seen."""
    with running() as live:
        lines = live.http.get("/metrics").text.splitlines()
    taking = [route.path for route in ROUTES if route.body is not None]
    assert "/v1/chat/completions" in taking
    for path in taking:
        for status in ("500", "503"):
            assert f'noria_http_requests_total{{method="POST",route="{path}",status="{status}"}} 0.0' in lines


def test_a_client_that_leaves_is_counted_as_499() -> None:
    with running(model="slow") as live:
        with begun(live):
            pass
        labels = {"method": "POST", "route": "/v1/completions", "status": "499"}
        eventually(lambda: 'status="499"' in live.http.get("/metrics").text, "the request has ended")
        assert live.metric("noria_http_requests_total", **labels) == 1
        assert live.metric("noria_broken_streams_total") == 0


def test_what_is_built_and_served(live: Live) -> None:
    families = {family.name: family for family in text_string_to_metric_families(live.http.get("/metrics").text)}
    (build,) = families["noria_build_info"].samples
    assert build.value == 1
    assert build.labels == {
        "version": metadata.version("noria"),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    (model,) = families["noria_model_info"].samples
    assert model.value == 1
    about = {"model": "fake", "device": "fake", "attention": "fake", "context": "512"}
    assert about.items() <= model.labels.items()
    assert (int(model.labels["sequences"]), int(model.labels["step_tokens"])) == STEP_LIMITS["cpu"]


def test_the_engine_process_in_the_metrics(live: Live) -> None:
    """The fake engine is a thread of this process."""
    eventually(lambda: 'noria_engine_resident_memory_bytes{model="fake"} ' in live.http.get("/metrics").text, "a beat")
    ours = resource.getrusage(resource.RUSAGE_SELF)
    assert 2**20 < live.metric("noria_engine_resident_memory_bytes") <= ours.ru_maxrss * 1024
    assert 0 < live.metric("noria_engine_cpu_seconds_total") <= time.process_time()


def test_processor_time_never_falls() -> None:
    """A new engine counts from 0; the metric goes on, so that rate() sees no reset."""
    metrics = Metrics()
    model = metrics.of_model("fake")
    model.observe_beat(Beat(0.0, 100, 7.5))
    assert samples(metrics, "noria_engine_") == {"resident_memory_bytes": 100, "cpu_seconds_total": 7.5}
    model.observe_restart()
    assert samples(metrics, "noria_engine_") == {"cpu_seconds_total": 7.5, "restarts_total": 1}
    model.observe_beat(Beat(0.0, None, 0.25))
    model.observe_restart()
    model.observe_beat(Beat(0.0, 200, 0.5))
    engine = samples(metrics, "noria_engine_")
    assert engine == {"resident_memory_bytes": 200, "cpu_seconds_total": 8.25, "restarts_total": 2}


def samples(metrics: Metrics, prefix: str) -> dict[str, float]:
    """Samples of the model "fake" that have one value and are not 0, by the rest of their names."""
    lines = [line for line in metrics.render().decode().splitlines() if line.startswith(prefix)]
    values = {
        line.split()[0].removeprefix(prefix).removesuffix('{model="fake"}'): float(line.split()[1]) for line in lines
    }
    return {name: value for name, value in values.items() if value and not name.endswith("_created")}


@pytest.mark.parametrize("name", ["queue", "time_to_first_token", "inter_token", "request"])
def test_latency_buckets_resolve_a_millisecond(name: str) -> None:
    metrics = Metrics()
    metrics.of_model("fake")
    text = metrics.render().decode()
    for milliseconds in range(1, 11):
        assert f'noria_{name}_seconds_bucket{{le="{milliseconds / 1000}",model="fake"}}' in text


def test_counters_survive_the_engine_and_windows_are_named() -> None:
    stats = Stats(
        preemptions=2,
        queried_tokens=10,
        hit_tokens=4,
        draft_tokens=7,
        accepted_draft_tokens=3,
        grammar_restarts=2,
        pools=(PoolPages(256, 16, 8, 3, 0, 1, 4), PoolPages(None, 16, 10, 1, 0, 0, 9)),
    )
    metrics = Metrics()
    model = metrics.of_model("fake")
    model.stats = lambda: stats
    model.observe_report(Report((), stats))
    model.observe_restart()
    model.observe_report(Report((), Stats(preemptions=1, queried_tokens=5, hit_tokens=5, draft_tokens=1)))
    metrics.observe_helper_restart("trial")
    lines = metrics.render().decode().splitlines()
    for line in (
        'noria_preemptions_total{model="fake"} 3.0',
        'noria_prefix_cache_queried_tokens_total{model="fake"} 15.0',
        'noria_prefix_cache_hit_tokens_total{model="fake"} 9.0',
        'noria_draft_tokens_total{model="fake"} 8.0',
        'noria_accepted_draft_tokens_total{model="fake"} 3.0',
        'noria_engine_restarts_total{model="fake"} 1.0',
        'noria_grammar_restarts_total{process="trial"} 1.0',
        'noria_grammar_restarts_total{process="follower"} 2.0',
        'noria_kv_pages{model="fake",state="held",window="256"} 3.0',
        'noria_kv_pages{model="fake",state="free",window="full"} 9.0',
        'noria_kv_usage_ratio{model="fake"} 0.375',
    ):
        assert line in lines


def test_event_loop_lag_shows_a_blocked_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loop's clock says that it stood still for 0.6 s, in the middle of a pause of 0.25 s."""
    metrics = Metrics()

    async def block() -> None:
        loop, now = asyncio.get_running_loop(), [1000.0]
        monkeypatch.setattr(loop, "time", lambda: now[0])
        watch = asyncio.create_task(metrics.watch_event_loop())
        await asyncio.sleep(0)
        now[0] += 0.6
        for _ in range(5):
            await asyncio.sleep(0)
        watch.cancel()

    asyncio.run(block())
    line = next(line for line in metrics.render().decode().splitlines() if line.startswith("noria_event_loop_lag"))
    assert float(line.split()[1]) == pytest.approx(0.35)


def test_one_line_a_request_and_no_prompt_in_any(caplog: pytest.LogCaptureFixture) -> None:
    with running() as live:
        caplog.set_level(logging.INFO, logger="noria")
        chat = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 3}
        reply = live.post("/v1/chat/completions", chat, headers={"x-request-id": "mine"}).json()
        live.post("/v1/completions", {"prompt": SECRET, "temperature": 9})
        live.post("/v1/completions", {"prompt": [1, 255], "user": SECRET})
        live.post("/v1/completions", {SECRET: 1})
        eventually(lambda: len([r for r in caplog.records if r.name == "noria.access"]) == 4, "four lines")
        lines = [JsonFormatter().format(record) for record in caplog.records]
    access = [json.loads(line) for line in lines if json.loads(line)["logger"] == "noria.access"]
    first = access[0]
    assert first["message"] == "POST /v1/chat/completions"
    assert first["id"] == "mine"
    assert (first["status"], first["outcome"]) == (200, "length")
    assert (first["prompt_tokens"], first["generated_tokens"], first["cached_tokens"]) == (len(SECRET) + 5, 3, 0)
    assert 0 <= first["queue_s"] <= first["ttft_s"] <= first["total_s"]
    assert [line["outcome"] for line in access] == ["length", "refused", "error", "refused"]
    whole = "\n".join(lines)
    assert SECRET not in whole
    assert reply["choices"][0]["message"]["content"] not in whole
