"""The bodies of the endpoints for LoRA adapters, with our names of the fields and with vLLM's."""

from pydantic import Field

from service.errors.errors import InvalidRequest
from service.schema.fields import Body, only
from service.settings import MAX_ADAPTER_NAME, adapter_name_problem

MAX_PATH = 4096
NAME = f"The adapter's name, the `model` of requests that use it: up to {MAX_ADAPTER_NAME} printable characters."
PATH = "The adapter's directory, below `--lora-dir`. It may be relative to that."


class UnloadBody(Body):
    """`POST /v1/lora/unload`."""

    name: str = Field(description=NAME)

    def check(self) -> None:
        _check_name("name", self.name)


class LoadBody(UnloadBody):
    """`POST /v1/lora/load`."""

    path: str = Field(description=PATH, min_length=1, max_length=MAX_PATH)


class VllmUnloadBody(Body):
    """`POST /v1/unload_lora_adapter`."""

    harmless = only(lora_int_id=())
    lora_name: str = Field(description=NAME)

    def check(self) -> None:
        _check_name("lora_name", self.lora_name)


class VllmLoadBody(VllmUnloadBody):
    """`POST /v1/load_lora_adapter`."""

    harmless = only(load_inplace=(False,))
    lora_path: str = Field(description=PATH, min_length=1, max_length=MAX_PATH)


def _check_name(field: str, name: str) -> None:
    if (problem := adapter_name_problem(name)) is not None:
        raise InvalidRequest(f"{field}: {problem}", param=field)
