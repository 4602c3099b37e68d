"""`POST /v1/lora/load` and `/v1/lora/unload`, and vLLM's names of both."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from os.path import realpath
from pathlib import Path
from typing import Literal

from fastapi import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from model.errors import ModelError, quoted
from service.access.record import RequestRecord
from service.api.admission import State
from service.api.examples import MODEL
from service.api.lora.schema import LoadBody, UnloadBody, VllmLoadBody, VllmUnloadBody
from service.api.routes import json_response, post
from service.errors.errors import AdapterExists, AdapterNotFound, Forbidden, InvalidRequest
from service.http.sse import while_connected

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


LOADED: LoadedAdapter = {"id": "sql", "object": "lora.adapter", "parent": MODEL}
UNLOADED: UnloadedAdapter = {"id": "sql", "object": "lora.unloaded"}


@post(
    "/v1/lora/load",
    body=LoadBody,
    request={"name": "sql", "path": "sql"},
    answer=LoadedAdapter,
    answers=(LOADED,),
    refusals=(409,),
)
async def load(request: Request, body: LoadBody) -> Response:
    """Load a LoRA adapter

    It needs the flag `--lora-dir`. The answer comes once the adapter can serve.
    """
    return await _load(request, body.name, body.path, ("name", "path"))


@post("/v1/lora/unload", body=UnloadBody, request={"name": "sql"}, answer=UnloadedAdapter, answers=(UNLOADED,))
async def unload(request: Request, body: UnloadBody) -> Response:
    """Unload a LoRA adapter

    It needs the flag `--lora-dir`. New requests get a 404 at once, those that run with the adapter finish.
    """
    return _unload(request, body.name, "name")


@post(
    "/v1/load_lora_adapter",
    body=VllmLoadBody,
    request={"lora_name": "sql", "lora_path": "sql"},
    answer=LoadedAdapter,
    answers=(LOADED,),
    refusals=(409,),
)
async def load_as_in_vllm(request: Request, body: VllmLoadBody) -> Response:
    """Load a LoRA adapter, by vLLM's names"""
    return await _load(request, body.lora_name, body.lora_path, ("lora_name", "lora_path"))


@post(
    "/v1/unload_lora_adapter",
    body=VllmUnloadBody,
    request={"lora_name": "sql"},
    answer=UnloadedAdapter,
    answers=(UNLOADED,),
)
async def unload_as_in_vllm(request: Request, body: VllmUnloadBody) -> Response:
    """Unload a LoRA adapter, by vLLM's names"""
    return _unload(request, body.lora_name, "lora_name")


async def _load(request: Request, name: str, path: str, fields: tuple[str, str]) -> Response:
    """`fields` are the client's names of name and path."""
    state: State = request.app.state.noria
    directory, served = _allowed(request), state.admission.require()
    found = await asyncio.to_thread(path_inside, directory, path, fields[1])  # its disk may be slow
    with naming(fields[0]):
        if name in served.names:
            raise AdapterExists(name)
        loading = state.admission.adapters.load(name, found)
        try:
            await while_connected(request.receive, state.admission.expired, loading)
        except ModelError as error:
            raise InvalidRequest(str(error), param=fields[1], code="adapter_refused") from error
    _note(request, "adapter loaded", name)
    answer: LoadedAdapter = {"id": name, "object": "lora.adapter", "parent": served.names[0]}
    return json_response(answer)


def _unload(request: Request, name: str, field: str) -> Response:
    state: State = request.app.state.noria
    _allowed(request)
    state.admission.require()
    with naming(field):
        state.admission.adapters.unload(name)
    _note(request, "adapter unloaded", name)
    answer: UnloadedAdapter = {"id": name, "object": "lora.unloaded"}
    return json_response(answer)


@contextmanager
def naming(field: str) -> Iterator[None]:
    """Errors about the adapter's name have the client's name of that field."""
    try:
        yield
    except (AdapterExists, AdapterNotFound) as error:
        error.param = field
        raise


def _note(request: Request, what: str, name: str) -> None:
    log.info(what, extra={"fields": {"adapter": name, "id": request.scope["noria.record"].id}})


def _allowed(request: Request) -> Path:
    """The directory of --lora-dir. Raises InvalidRequest without one, Forbidden for a key that may not use it."""
    record: RequestRecord = request.scope["noria.record"]
    if record.key is not None and not record.key.entry.loads_adapters:
        message = f"the key {record.key.name} may not load adapters: its entry in --api-key-file needs loads_adapters"
        raise Forbidden(message, code="not_allowed")
    directory: Path | None = request.app.state.noria.settings.lora_dir
    if directory is None:
        message = "this server loads adapters only at its start, with --lora: it was started without --lora-dir"
        raise InvalidRequest(message, code="no_lora_dir")
    return directory


def path_inside(directory: Path, path: str, field: str) -> Path:
    """The path without symbolic links. Raises InvalidRequest unless it and its files are below the directory."""
    root = directory.resolve()
    try:
        found = (root / path).resolve()
        folder = found if found.is_dir() else found.parent
    except (OSError, RuntimeError, ValueError):  # a loop of links, a name that is too long, a byte 0
        found = folder = root
    if root not in found.parents:
        raise InvalidRequest(f"{field} must be a directory below --lora-dir, got {quoted(path)}", param=field)
    for file in (*folder.glob("*.json"), *folder.glob("*.safetensors")):
        if root not in Path(realpath(file)).parents:
            message = f"{field}: the file {quoted(file.name)} of {quoted(path)} is a link that leads out of --lora-dir"
            raise InvalidRequest(message, param=field)
    return found
