"""The bodies of the endpoints for LoRA adapters, with vLLM's names of the fields."""

from pydantic import Field

from service.errors.errors import InvalidRequest
from service.schema.fields import Body, only
from service.settings import MAX_ADAPTER_NAME, adapter_name_problem

MAX_PATH = 4096
NAME = f"The adapter's name, the `model` of requests that use it: up to {MAX_ADAPTER_NAME} printable characters."
PATH = "The adapter's directory, below `--lora-dir`. It may be relative to that."


class UnloadBody(Body):
    """`POST /v1/unload_lora_adapter`."""

    harmless = only(lora_int_id=())
    lora_name: str = Field(description=NAME)

    def check(self) -> None:
        if (problem := adapter_name_problem(self.lora_name)) is not None:
            raise InvalidRequest(f"lora_name: {problem}", param="lora_name")


class LoadBody(UnloadBody):
    """`POST /v1/load_lora_adapter`."""

    harmless = only(load_inplace=(False,))
    lora_path: str = Field(description=PATH, min_length=1, max_length=MAX_PATH)
