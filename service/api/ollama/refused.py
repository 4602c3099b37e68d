"""Routes of Ollama's API that change the models of a machine: Noria takes no such orders over HTTP."""

from starlette.responses import Response

from service.access.record import Policy
from service.api.call import Call
from service.api.routes import Route, get
from service.errors.dialects import OLLAMA, OllamaError
from service.errors.errors import Forbidden

WHERE = "on the machine of the server"
HOW = {
    "pull": f"downloads no model for a client: run noria pull NAME {WHERE}, and name it to noria serve",
    "push": "uploads no model",
    "create": "makes no model: name its files, its chat template and its adapters to noria serve",
    "copy": "copies no model: an alias of --models, or --served-model-name, gives it another name",
    "delete": f"deletes no model for a client: run noria rm NAME {WHERE}",
}


def _refused(name: str, method: str) -> Route:
    """The route of an order that is always a 403."""

    async def refuse(call: Call) -> Response:
        raise Forbidden(f"/api/{name} is not allowed: this server {HOW[name]}", code="not_allowed")

    refuse.__name__, refuse.__doc__ = name, f"Refuse to {name} a model, which Ollama does\n\nAlways a 403."
    declare = get(f"/api/{name}", answer=OllamaError, statuses=(403,), methods=(method,), policy=Policy(OLLAMA))
    return declare(refuse)


REFUSED = tuple(_refused(name, "DELETE" if name == "delete" else "POST") for name in HOW)
