"""The metrics under vLLM's names, for dashboards and autoscalers that know these."""

from collections.abc import Callable, Collection, Iterator, Mapping

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

NAMES: Mapping[str, tuple[str, ...]] = {
    "noria_requests_running": ("num_requests_running",),
    "noria_requests_waiting": ("num_requests_waiting",),
    "noria_kv_usage_ratio": ("kv_cache_usage_perc", "gpu_cache_usage_perc"),
    "noria_cache_config": ("cache_config",),
    "noria_lora_requests_info": ("lora_requests_info",),
    "noria_requests": ("request_success",),
    "noria_prefix_cache_queried_tokens": ("prefix_cache_queries", "gpu_prefix_cache_queries"),
    "noria_prefix_cache_hit_tokens": ("prefix_cache_hits", "gpu_prefix_cache_hits"),
    "noria_preemptions": ("num_preemptions",),
    "noria_prompt_tokens": ("prompt_tokens",),
    "noria_generated_tokens": ("generation_tokens",),
    "noria_step_tokens": ("iteration_tokens_total",),
    "noria_queue_seconds": ("request_queue_time_seconds",),
    "noria_time_to_first_token_seconds": ("time_to_first_token_seconds",),
    "noria_inter_token_seconds": ("inter_token_latency_seconds", "time_per_output_token_seconds"),
    "noria_request_seconds": ("e2e_request_latency_seconds",),
}
"""Metric -> vLLM's name, and the name in older versions. Each has the prefix `vllm:` there."""

LABELS = {"outcome": "finished_reason", "model": "model_name"}


class VllmNames(Collector):
    """The metrics of `registry` that vLLM has too, of the models that `loaded` names."""

    def __init__(self, registry: CollectorRegistry, loaded: Callable[[], Collection[str]]) -> None:
        self._registry = registry
        self._loaded = loaded

    def collect(self) -> Iterator[Metric]:
        if not (loaded := self._loaded()):
            return
        for family in self._registry.collect():
            for name in NAMES.get(family.name, ()):
                renamed = Metric(f"vllm:{name}", family.documentation, family.type)
                samples = [
                    sample
                    for sample in family.samples
                    if sample.labels["model"] in loaded and sample.labels.get("outcome") != "refused"
                ]
                renamed.samples.extend(_renamed(sample, family.name, renamed.name) for sample in samples)
                yield renamed


def _renamed(sample: Sample, before: str, after: str) -> Sample:
    """Return the sample with vLLM's labels. Refused requests have none: vLLM counts what it has begun."""
    labels = {LABELS.get(name, name): value for name, value in sample.labels.items()}
    name = after + sample.name.removeprefix(before)
    return sample._replace(name=name, labels={**labels, "engine": "0"})
