"""The model that a request of Ollama's API names, and how long the model stays loaded afterwards."""

from contextlib import ExitStack
from dataclasses import replace
from typing import Literal

from fastapi import Request

from service.access.record import RequestRecord
from service.access.rights import check_right
from service.api.answering import admit
from service.api.ollama.options import KeepingBody
from service.api.openai.models import check_keep_alive, may_load
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


class Target:
    """The model of a request. `name` is the server's name of it, and `shown` that in the answer."""

    def __init__(self, request: Request, body: KeepingBody) -> None:
        """Raises ModelNotFound."""
        self._request = request
        self.record: RequestRecord = request.scope["noria.record"]
        self._keep_alive = body.keep_alive
        self.name, self.model = found_model(request, body.model)
        self.shown = body.model or self.model.name
        self._keeps = body.keep_alive is not None and self.model.entry.on_demand and may_load(self.record)

    def note_ignored(self) -> None:
        """Name a `keep_alive` without effect among the ignored fields."""
        if self._keep_alive is not None and not self._keeps:
            self.record.ignored += ("keep_alive",)

    def keep(self) -> None:
        """Let the model stay loaded for as long as the request says, from the end of the request on."""
        if self._keeps:
            self.model.idle_seconds = check_keep_alive(self._keep_alive)

    async def load_or_unload(self) -> Literal["load", "unload"]:
        """Load the model for a request without a prompt, or unload it if `keep_alive` is 0. Raises Forbidden."""
        self.record.policy = replace(self.record.policy, operation=None)
        state: State = self._request.app.state.noria
        receive, expired, model = self._request.receive, state.drain.expired, self.model
        if model.entry.on_demand and self._keep_alive is not None and check_keep_alive(self._keep_alive) == 0:
            check_right(self.record, "loads_models", "load models")
            await while_connected(receive, expired, state.models.unload(model, "request"))
            return "unload"
        self.note_ignored()
        with ExitStack() as stack:
            self.model, _ = await admit(stack, self._request, self.name)
            self.keep()
        return "load"
