"""Noria as an application of Ray Serve: `serve run deploy.ray.app:build model=MODEL max_replicas=4`."""

from dataclasses import replace
from typing import Any

from ray import serve
from ray.serve.config import AutoscalingConfig, BackpressureConfig, RequestRouterConfig
from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

from deploy.ray.arguments import Arguments
from deploy.ray.replica import Ingress
from service.settings import Settings

CLOSING_SECONDS = 10.0
"""Time for the end of the engine, after the drain."""
RETRY_SECONDS = 1.0
"""What a client is told to wait when too many requests wait in a proxy."""
HEALTH_SECONDS = 2.0
"""Between two checks of a replica's health. Ray replaces a replica that fails three in a row."""


def build(arguments: Arguments) -> serve.Application:
    """The application. Ray reads `arguments` as `name=value` on a command line, or as `args` in a file."""
    settings = replica_settings(arguments)
    deployment = serve.deployment(
        Ingress,
        # A proxy keeps the router of a deployment as long as it runs, so another router needs another name.
        name="NoriaSessions" if arguments.session_affinity else "Noria",
        autoscaling_config=AutoscalingConfig(**arguments.model_dump(include=set(AutoscalingConfig.model_fields))),
        max_ongoing_requests=arguments.max_ongoing_requests,
        max_queued_requests=settings.max_queue,
        backpressure_config=BackpressureConfig(status_code=429, retry_after_s=RETRY_SECONDS),
        health_check_period_s=HEALTH_SECONDS,
        graceful_shutdown_timeout_s=settings.drain_timeout + CLOSING_SECONDS,
        request_router_config=_router(arguments),
        **resources(arguments, settings.layout.size),
    )
    return deployment.bind(settings)


def replica_settings(arguments: Arguments) -> Settings:
    """The settings of each replica: it computes on the processors that Ray reserves for it."""
    settings = arguments.settings
    return replace(settings, threads=max(1, int(arguments.num_cpus))) if settings.threads is None else settings


def _router(arguments: Arguments) -> RequestRouterConfig:
    """Who chooses the replica of a request: the less busy of two, or the one of the request's session."""
    if arguments.session_affinity:
        return RequestRouterConfig(request_router_class=ConsistentHashRouter)
    return RequestRouterConfig()


def resources(arguments: Arguments, n_ranks: int) -> dict[str, Any]:
    """What Ray reserves for a replica. Its ranks are children of its engine: all share one bundle, so one machine."""
    cpus, gpus = arguments.num_cpus * n_ranks, arguments.num_gpus * n_ranks
    return {
        "ray_actor_options": {"num_cpus": cpus, "num_gpus": gpus},
        "placement_group_bundles": [{"CPU": cpus, "GPU": gpus}],
        "placement_group_strategy": "STRICT_PACK",
    }
