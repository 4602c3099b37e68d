"""Noria as an application of Ray Serve: `serve run deploy.ray.app:build model=MODEL max_replicas=4`."""

from ray import serve
from ray.serve.config import AutoscalingConfig, RequestRouterConfig
from ray.serve.deployment import Application

from deploy.ray.arguments import Arguments
from deploy.ray.replica import Replica

CLOSING_SECONDS = 10
"""Time for the end of the engine, after the drain."""


def build(arguments: Arguments) -> Application:
    """The application. Ray makes `arguments` from `name=value` on its command line, or from `args` of its config file."""
    settings = arguments.settings
    router = arguments.request_router
    deployment = serve.deployment(
        name="Noria",
        ray_actor_options={"num_cpus": arguments.num_cpus, "num_gpus": arguments.num_gpus},
        autoscaling_config=AutoscalingConfig(
            min_replicas=arguments.min_replicas,
            initial_replicas=arguments.initial_replicas,
            max_replicas=arguments.max_replicas,
            target_ongoing_requests=arguments.target_ongoing_requests,
            upscale_delay_s=arguments.upscale_delay_s,
            downscale_delay_s=arguments.downscale_delay_s,
        ),
        max_ongoing_requests=arguments.max_ongoing_requests,
        max_queued_requests=settings.max_queue,
        graceful_shutdown_timeout_s=settings.drain_timeout + CLOSING_SECONDS,
        request_router_config=RequestRouterConfig(request_router_class=router) if router else RequestRouterConfig(),
    )(Replica)
    return deployment.bind(settings)
