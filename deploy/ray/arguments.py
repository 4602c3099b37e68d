"""The arguments of `deploy.ray.app:build`: how a replica is run on Ray, and the flags of `noria serve`."""

from collections.abc import Iterator
from dataclasses import Field
from typing import Annotated, Any, Literal, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, create_model
from pydantic import Field as Bounded

from model.options import Flag, flag_name, grouped_flags
from service.commands.flags import parse_size
from service.settings import Settings

OF_THE_PROXY = ("Network",)
"""Groups of flags that say how the server listens. Ray's proxy listens here."""
WITHOUT_MEANING = {
    *("ssl_certfile", "ssl_keyfile", "health_port", "log_level_file"),
    *("max_connections", "max_connections_per_address"),
    "lora_dir",  # a request that loads an adapter reaches one replica of many
}
"""Fields of other groups that need connections, signals or a client of one's own."""


class Scale(BaseModel):
    """What Ray gives to a replica, and how many replicas it runs."""

    model_config = ConfigDict(extra="forbid")

    num_cpus: Annotated[float, Bounded(gt=0)] = 1
    """Processors that Ray reserves for each rank. Without `threads` a rank computes on as many threads."""
    num_gpus: Annotated[float, Bounded(ge=0)] = 0
    """GPUs that Ray reserves for each rank."""
    min_replicas: Annotated[int, Bounded(ge=0)] = 1
    max_replicas: Annotated[int, Bounded(ge=1)] = 1
    initial_replicas: Annotated[int, Bounded(ge=0)] | None = None
    target_ongoing_requests: Annotated[float, Bounded(gt=0)] = 16
    """Requests that a replica should have. Ray adds replicas when they have more, and removes some when less."""
    upscale_delay_s: Annotated[float, Bounded(ge=0)] = 30
    downscale_delay_s: Annotated[float, Bounded(ge=0)] = 600
    max_ongoing_requests: Annotated[int, Bounded(ge=1)] = 64
    """Requests that a replica gets at a time. Up to `max_queue` others wait in each proxy of Ray."""
    session_affinity: bool = False
    """Send the requests of a conversation to the same replica, whose cache then has its start. The header's name is in
    `RAY_SERVE_SESSION_ID_HEADER_KEY` of Ray's processes, by default `x-session-id`."""


def served_fields() -> Iterator[tuple[str, Field[Any], Flag]]:
    """The name of each argument that is a flag of `noria serve`, with its declaration."""
    for group, field, flag in grouped_flags(Settings):
        if group not in OF_THE_PROXY and field.name not in WITHOUT_MEANING:
            yield flag_name(field)[2:].replace("-", "_"), field, flag


def _argument(field: Field[Any], flag: Flag) -> Any:
    """Type and default of an argument, as pydantic reads them. `Settings.check` knows the limits."""
    kind: Any = Literal[flag.choices] if flag.choices else field.type
    if flag.is_size:
        kind = Annotated[kind, BeforeValidator(lambda value: parse_size(value) if isinstance(value, str) else value)]
    if get_origin(field.type) is tuple:
        kind = Annotated[kind, BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)]
    return kind, field.default


_Arguments: Any = create_model(
    "_Arguments", __base__=Scale, **{name: _argument(field, flag) for name, field, flag in served_fields()}
)


class Arguments(_Arguments):
    """The fields of `Scale`, and every flag of `noria serve` that means something behind Ray's proxy.

    A flag's name has underscores here: `max_model_len` for `--max-model-len`. Where a flag may be repeated, the
    argument is a list.
    """

    @property
    def settings(self) -> Settings:
        """The flags, checked later, on the machine of the replica: paths are paths there."""
        return Settings(**{field.name: getattr(self, name) for name, field, _ in served_fields()})
