"""`POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`, as in vLLM: adapters may change at any time."""

import asyncio
import logging
from os.path import realpath
from pathlib import Path
from typing import Literal

from pydantic import Field
from starlette.responses import Response
from typing_extensions import TypedDict

from model.errors import ModelError, quoted
from service.access.rights import check_right
from service.api.call import Call
from service.api.routes import json_response, post
from service.errors.errors import AdapterExists, InvalidRequest
from service.model_settings import MAX_ADAPTER_NAME, adapter_name_problem
from service.schema.fields import Body, only, optional

MAX_PATH = 4096
NAME = f"The adapter's name, the `model` of requests that use it: up to {MAX_ADAPTER_NAME} printable characters."
PATH = "The adapter's directory, below `--lora-dir`. It may be relative to that."


class UnloadAdapterBody(Body):
    """The request body of `POST /v1/unload_lora_adapter`."""

    harmless = only(lora_int_id=())
    lora_name: str = Field(description=NAME)
    model: str | None = optional("The model that the adapter changes. Default: the first model.")

    def check(self) -> None:
        if (problem := adapter_name_problem(self.lora_name)) is not None:
            raise InvalidRequest(f"lora_name: {problem}", param="lora_name")


class LoadAdapterBody(UnloadAdapterBody):
    """The request body of `POST /v1/load_lora_adapter`."""

    harmless = only(load_inplace=(False,))
    lora_path: str = Field(description=PATH, min_length=1, max_length=MAX_PATH)


log = logging.getLogger("noria.lora")


class LoadedAdapter(TypedDict):
    """An adapter that serves from now on. `parent` is the model that it changes."""

    id: str
    object: Literal["lora.adapter"]
    parent: str


class UnloadedAdapter(TypedDict):
    """An adapter that no new request may use. Those that run with it finish."""

    id: str
    object: Literal["lora.unloaded"]


@post(
    "/v1/load_lora_adapter",
    body=LoadAdapterBody,
    request={"lora_name": "sql", "lora_path": "sql"},
    answer=LoadedAdapter,
    refusals=(409,),
)
async def load(call: Call, body: LoadAdapterBody) -> Response:
    """Load a LoRA adapter

    It needs the flag `--lora-dir`. The answer comes once the adapter can serve.
    """
    _allowed(call)
    served = await call.loaded()
    directory = _allowed(call)  # it may be another model by now
    found = await asyncio.to_thread(path_inside, directory, body.lora_path)  # its disk may be slow
    if any(other.has(body.lora_name) for other in call.state.models):
        raise AdapterExists(body.lora_name)
    try:
        await call.model.admission.adapters.load(body.lora_name, found)
    except ModelError as error:
        raise InvalidRequest(str(error), param="lora_path", code="adapter_refused") from error
    log.info("adapter loaded", extra={"fields": {"adapter": body.lora_name, "id": call.record.id}})
    return json_response(LoadedAdapter(id=body.lora_name, object="lora.adapter", parent=served.names[0]))


@post("/v1/unload_lora_adapter", body=UnloadAdapterBody, request={"lora_name": "sql"}, answer=UnloadedAdapter)
async def unload(call: Call, body: UnloadAdapterBody) -> Response:
    """Unload a LoRA adapter

    It needs the flag `--lora-dir`. New requests get a 404 at once, those that run with the adapter finish.
    """
    _allowed(call)
    call.model.admission.adapters.unload(body.lora_name)
    log.info("adapter unloaded", extra={"fields": {"adapter": body.lora_name, "id": call.record.id}})
    return json_response(UnloadedAdapter(id=body.lora_name, object="lora.unloaded"))


def _allowed(call: Call) -> Path:
    """Return the directory of --lora-dir. Raises InvalidRequest without one, Forbidden for a key without the right."""
    model = call.model
    check_right(call.record, "loads_adapters", "load adapters")
    directory: Path | None = model.entry.settings.lora_dir
    if directory is None:
        message = "this server loads adapters only at its start, with --lora: it was started without --lora-dir"
        raise InvalidRequest(message, code="no_lora_dir")
    return directory


def path_inside(directory: Path, path: str) -> Path:
    """Return the path without symbolic links. Raises InvalidRequest unless it and its files are below the directory."""
    root = directory.resolve()
    try:
        found = (root / path).resolve()
        folder = found if found.is_dir() else found.parent
    except (OSError, RuntimeError, ValueError):  # a loop of links, a name that is too long, a byte 0
        found = folder = root
    if root not in found.parents:
        raise InvalidRequest(f"lora_path must be a directory below --lora-dir, got {quoted(path)}", param="lora_path")
    for file in (*folder.glob("*.json"), *folder.glob("*.safetensors")):
        if root not in Path(realpath(file)).parents:
            message = f"lora_path: the file {quoted(file.name)} of {quoted(path)} is a link out of --lora-dir"
            raise InvalidRequest(message, param="lora_path")
    return found
