"""`/metrics?names=vllm`: the same values under the names and labels that dashboards for vLLM query."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from service.observe.metrics import Metrics
from tests.fakes import make_info
from tests.service.live import Live, idle
from tests.waiting import eventually

MODEL = {"model_name": "fake", "engine": "0"}
SAME = {
    "vllm:num_requests_running": ("noria_requests_running", {}),
    "vllm:num_requests_waiting": ("noria_requests_waiting", {}),
    "vllm:kv_cache_usage_perc": ("noria_kv_usage_ratio", {}),
    "vllm:gpu_cache_usage_perc": ("noria_kv_usage_ratio", {}),
    "vllm:prefix_cache_queries_total": ("noria_prefix_cache_queried_tokens_total", {}),
    "vllm:prefix_cache_hits_total": ("noria_prefix_cache_hit_tokens_total", {}),
    "vllm:num_preemptions_total": ("noria_preemptions_total", {}),
    "vllm:prompt_tokens_total": ("noria_prompt_tokens_total", {}),
    "vllm:generation_tokens_total": ("noria_generated_tokens_total", {}),
    "vllm:request_queue_time_seconds_count": ("noria_queue_seconds_count", {}),
    "vllm:time_to_first_token_seconds_sum": ("noria_time_to_first_token_seconds_sum", {}),
    "vllm:inter_token_latency_seconds_bucket": ("noria_inter_token_seconds_bucket", {"le": "+Inf"}),
    "vllm:time_per_output_token_seconds_bucket": ("noria_inter_token_seconds_bucket", {"le": "+Inf"}),
    "vllm:e2e_request_latency_seconds_count": ("noria_request_seconds_count", {}),
    "vllm:iteration_tokens_total_sum": ("noria_step_tokens_sum", {}),
}
"""vLLM's sample -> ours, and the labels of both."""


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(text)
    return {(item.name, frozenset(item.labels.items())): item.value for family in families for item in family.samples}


def test_values_are_the_same(live: Live) -> None:
    before = live.metric("noria_requests_total", outcome="length")
    live.complete(prompt="a", max_tokens=5)
    eventually(lambda: live.metric("noria_requests_total", outcome="length") > before, "the request is counted")
    eventually(idle(live), "it is idle")
    ours, theirs = (samples(live.http.get(f"/metrics{query}").text) for query in ("", "?names=vllm"))
    for name, (own, labels) in SAME.items():
        assert (
            theirs[name, frozenset((MODEL | labels).items())]
            == ours[own, frozenset(({"model": "fake"} | labels).items())]
        ), name
    ended = {
        dict(labels)["finished_reason"]: value for (name, labels), value in theirs.items() if "_success_total" in name
    }
    assert ended["length"] == ours["noria_requests_total", frozenset({("model", "fake"), ("outcome", "length")})] >= 1
    assert "refused" not in ended
    assert {name.partition(":")[0] for name, _ in theirs} == {"vllm"}


def test_the_cache_has_its_size() -> None:
    """In vLLM, block_size times num_gpu_blocks is the number of tokens that fit."""
    metrics = Metrics()
    metrics.of_model("fake").describe(make_info(page_size=4, pools=((8, 16), (None, 64))))
    found = samples(metrics.render(vllm=True).decode())
    labels = MODEL | {"block_size": "4", "num_gpu_blocks": "64"}
    assert found["vllm:cache_config_info", frozenset(labels.items())] == 1


def test_there_is_nothing_before_the_model_is_known() -> None:
    metrics = Metrics()
    metrics.of_model("fake")
    assert metrics.render(vllm=True) == b""


@pytest.mark.parametrize("names", ["sglang", "", "VLLM"])
def test_other_names_are_refused(live: Live, names: str) -> None:
    described = live.http.get("/openapi.json").json()["paths"]["/metrics"]["get"]
    assert "400" in described["responses"]
    (declared,) = described["parameters"]
    assert declared == {"name": "names", "in": "query", "schema": {"type": "string", "enum": ["noria", "vllm"]}}
    response = live.http.get("/metrics", params={"names": names})
    assert response.status_code == 400
    assert (response.json()["error"]["param"], f'"{names}"' in response.json()["error"]["message"]) == ("names", True)
