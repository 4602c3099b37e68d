"""How requests of Ollama's API name a model, and how long it then stays loaded."""

from dataclasses import replace
from typing import Literal

from fastapi import Request

from service.access.record import RequestRecord
from service.api.ollama.options import KeepingBody
from service.api.openai.models import check_keep_alive, check_may_load, may_load
from service.api.state import State, hosted
from service.hosting.hosted import HostedModel
from service.http.sse import while_connected

TAG = ":latest"
"""What Ollama's clients add to a name without a tag."""


def found_model(request: Request, name: str | None) -> tuple[str | None, HostedModel]:
    """The name as the server has it, and its model. Raises ModelNotFound."""
    record: RequestRecord = request.scope["noria.record"]
    state: State = request.app.state.noria
    known = {known for model in state.models.allowed(record.key) for known in model.names}
    bare = name if name is None or name in known else name.removesuffix(TAG)
    return bare, hosted(request, bare)


def note_ignored(record: RequestRecord, model: HostedModel, body: KeepingBody) -> None:
    """Name `keep_alive` among the ignored fields where it has no effect."""
    if body.keep_alive is not None and not (model.entry.on_demand and may_load(record)):
        record.ignored += ("keep_alive",)


def keep(record: RequestRecord, model: HostedModel, body: KeepingBody) -> None:
    """Let the model stay loaded for as long as the request says, from its end on."""
    if body.keep_alive is not None and model.entry.on_demand and may_load(record):
        model.idle_seconds = check_keep_alive(body.keep_alive)


async def load_or_unload(
    request: Request, name: str | None, model: HostedModel, body: KeepingBody
) -> Literal["load", "unload"]:
    """Load the model of a request without a prompt, or unload it if it is to stay for no time. Raises Forbidden."""
    record: RequestRecord = request.scope["noria.record"]
    state: State = request.app.state.noria
    record.policy = replace(record.policy, operation=None)
    note_ignored(record, model, body)
    if model.entry.on_demand and body.keep_alive is not None and check_keep_alive(body.keep_alive) == 0:
        check_may_load(record)
        await while_connected(request.receive, state.drain.expired, state.models.unload(model, "request"))
        return "unload"
    await while_connected(request.receive, state.drain.expired, state.models.until_loaded(model))
    model.admission.require(name)
    keep(record, model, body)
    return "load"
