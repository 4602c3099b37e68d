"""The model that a request of Ollama's API names, and how long the model stays loaded afterwards."""

from typing import Literal

from service.access.rights import check_right
from service.api.call import Call
from service.api.ollama.options import KeepingBody
from service.api.openai.models import check_keep_alive, may_load
from service.hosting.hosted import HostedModel

TAG = ":latest"
"""The tag that Ollama's clients add to a name without one."""


def find_model(call: Call, name: str | None) -> HostedModel:
    """Return the model of a name, and let the request have the name as the server has it. Raises ModelNotFound."""
    known = {known for model in call.state.models.allowed(call.record.key) for known in model.names}
    call.name = name if name is None or name in known else name.removesuffix(TAG)
    return call.model


class NamedModel:
    """The model of a request. `public` is its name in the answer.

    Raises ModelNotFound.
    """

    def __init__(self, call: Call, body: KeepingBody) -> None:
        self._call = call
        self._keep_alive = body.keep_alive
        model = find_model(call, body.model)
        self.public = body.model or model.name
        self._on_demand = model.entry.on_demand
        self._keeps = body.keep_alive is not None and self._on_demand and may_load(call.record)

    def note_ignored(self) -> None:
        """Name a `keep_alive` without effect among the ignored fields."""
        if self._keep_alive is not None and not self._keeps:
            self._call.record.ignored += ("keep_alive",)

    def keep(self) -> None:
        """Let the model stay loaded for as long as the request says, from the end of the request on."""
        if self._keeps:
            self._call.model.idle_seconds = check_keep_alive(self._keep_alive)

    async def load_or_unload(self) -> Literal["load", "unload"]:
        """Load the model for a request without a prompt, or unload it if `keep_alive` is 0. Raises Forbidden."""
        call = self._call
        call.generates_nothing()
        if self._on_demand and self._keep_alive is not None and check_keep_alive(self._keep_alive) == 0:
            check_right(call.record, "loads_models", "load models")
            await call.state.models.unload(call.model, "request")
            return "unload"
        self.note_ignored()
        await call.loaded()
        self.keep()
        return "load"
