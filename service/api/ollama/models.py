"""The models as Ollama's API lists and shows them: `/api/tags`, `/api/ps`, `/api/show`, and `/api/version`."""

import time
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from starlette.responses import Response

from model.checkpoint.config import read_config
from model.checkpoint.digest import network_files
from model.checkpoint.model_files import is_gguf
from model.checkpoint.resolve import resolve
from model.config.model import ModelConfig
from model.errors import ModelError, NoriaError
from service import version
from service.access.record import Policy
from service.api.call import Call
from service.api.lanes import LANES
from service.api.ollama.answer_types import ApiVersion, ModelDetails, OllamaModel, OllamaModels, ShownModel
from service.api.ollama.keeping import find_model
from service.api.ollama.options import NAMES
from service.api.ollama.shape import rfc3339
from service.api.routes import get, json_response, post
from service.api.text import fills_gaps
from service.errors.dialects import OLLAMA
from service.errors.errors import InvalidRequest, Unavailable
from service.generation.served import ServedModel
from service.generation.startup import TextSide, in_thread, load_text_side, marks_of
from service.hosting.hosted import HostedModel, public_reason
from service.schema.fields import Body, Json, only, optional

API = "0.14.0"
"""The first version of Ollama that has Anthropic's API, too. Clients refuse servers that say an older one."""
POLICY = Policy(OLLAMA)
FOREVER = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""When a model expires that stays loaded."""


class Facts(NamedTuple):
    """The facts of a model's files and of its service: format, context in tokens, width of an embedding."""

    family: str = ""
    format: str = ""
    n_parameters: int = 0
    n_bytes: int = 0
    quantization: str = ""
    context: int = 0
    width: int = 0

    @property
    def details(self) -> ModelDetails:
        millions = self.n_parameters / 1e6
        size = f"{millions / 1000:.1f}B" if millions >= 1000 else f"{millions:.2f}M"
        return {
            "parent_model": "",
            "format": self.format,
            "family": self.family,
            "families": [self.family] if self.family else [],
            "parameter_size": size if self.n_parameters else "",
            "quantization_level": self.quantization,
        }

    @property
    def info(self) -> Json:
        family = self.family or "unknown"
        return {
            "general.architecture": family,
            "general.parameter_count": self.n_parameters,
            f"{family}.context_length": self.context,
            f"{family}.embedding_length": self.width,
        }


@lru_cache(maxsize=64)
def _of_files(source: Path, stamp: str) -> Facts:
    """Return the facts of loaded files with this stamp. Raises ModelError or OSError."""
    facts = _of_config(source, read_config(source))
    return facts._replace(n_bytes=sum(path.stat().st_size for path in network_files(source)))


def _of_config(source: Path, config: ModelConfig) -> Facts:
    format_ = "gguf" if is_gguf(source) else "safetensors"
    return Facts(config.family, format_, config.n_parameters, context=config.max_position, width=config.dim)


def _of_served(served: ServedModel) -> Facts:
    try:
        facts = Facts() if served.source is None else _of_files(*served.source)
    except (ModelError, OSError):  # its files have gone since it was loaded
        facts = Facts()
    info, scheme = served.info, str(served.info.description.get("quantize", ""))
    return facts._replace(quantization=scheme, context=info.max_model_len, width=info.dim)


class ShowBody(Body):
    """The request body of `POST /api/show`."""

    harmless = only(system=("",), template=("",), options=({},))
    noticed = only(verbose=(True, False))
    model: str | None = optional("A name of the model.")
    name: str | None = optional("Another name of `model`.")

    def check(self) -> None:
        if not (self.model or self.name):
            raise InvalidRequest("model is required", param="model")


@get("/api/tags", answer=OllamaModels, policy=POLICY)
async def tags(call: Call) -> Response:
    """List the models, loaded or not, with their LoRA adapters, in Ollama's API"""
    named = [(model, name) for model in _models(call) for name in model.names]
    listed = await in_thread(lambda: [_named(*one) | {"modified_at": _modified(one[0])} for one in named])
    return json_response({"models": listed})


@get("/api/ps", answer=OllamaModels, policy=POLICY)
async def ps(call: Call) -> Response:
    """List the loaded models, in Ollama's API"""
    loaded = [model for model in _models(call) if model.admission.model is not None]
    return json_response({"models": await in_thread(lambda: [*map(_loaded, loaded)])})


@post("/api/show", body=ShowBody, request={"model": "smollm2-135m-instruct"}, answer=ShownModel, policy=POLICY)
async def show(call: Call, body: ShowBody) -> Response:
    """Show what a model can do, in Ollama's API

    The files of a model that is not loaded are read for it.
    """
    model = find_model(call, body.model or body.name)
    if model.admission.model is None and model.entry.on_demand:
        # one at a time: it takes memory
        return json_response(await call.state.work.run(lambda: _unloaded(model), LANES[-1] + 1))
    served = model.admission.require(call.name)
    thinks, sees = served.reasoning is not None, "image" in served.media_roles
    return json_response(await in_thread(lambda: _info(model, served, _of_served(served), thinks=thinks, sees=sees)))


@get("/api/version", answer=ApiVersion, policy=POLICY)
async def show_version(call: Call) -> Response:
    """Show the version of Ollama's API that these routes follow"""
    return json_response(ApiVersion(version=API, noria=version()))


def _unloaded(model: HostedModel) -> ShownModel:
    """Return the answer for a model that is not loaded, from its files. Raises Unavailable if they cannot be read."""
    settings = model.entry.settings
    try:
        source = resolve(settings.model, revision=settings.revision, weights=False)
        config = read_config(source, max_model_len=settings.max_model_len)
        side = load_text_side(source, settings.chat_template)
        thinks = marks_of(settings, side.chat, side.tokenizer) is not None
    except (NoriaError, OSError) as error:
        message = f"the files of {model.name} cannot be read: {public_reason(error)}"
        raise Unavailable(message, "model_failed") from error
    return _info(model, side, _of_config(source, config), thinks=thinks, sees=config.vision is not None)


def _info(model: HostedModel, side: TextSide | ServedModel, facts: Facts, *, thinks: bool, sees: bool) -> ShownModel:
    """Return the answer of `/api/show`."""
    values = {NAMES.get(name, name): value for name, value in side.defaults.sampling.items()}
    capabilities = {
        "completion": True,
        "tools": side.chat is not None,
        "insert": fills_gaps(side.tokenizer),
        "vision": sees,
        "thinking": thinks,
        "embedding": True,
    }
    return {
        "modified_at": _modified(model),
        "template": (side.chat and side.chat.source) or "",
        "parameters": "\n".join(f"{name} {value}" for name, value in {"num_ctx": facts.context, **values}.items()),
        "details": facts.details,
        "model_info": facts.info,
        "capabilities": [name for name, has in capabilities.items() if has],
    }


def _models(call: Call) -> list[HostedModel]:
    return call.state.models.allowed(call.record.key)


def _named(model: HostedModel, name: str) -> OllamaModel:
    """Return the fields that both lists have of a model."""
    served, settings = model.admission.model, model.entry.settings
    facts = Facts() if served is None else _of_served(served)
    digest = sha256(f"{settings.model}\n{settings.revision}\n{name}".encode()).hexdigest()
    return {"name": name, "model": name, "size": facts.n_bytes, "digest": digest, "details": facts.details}


def _loaded(model: HostedModel) -> Json:
    served, expiry = model.admission.model, FOREVER
    if model.idle_seconds is not None:
        idle = 0.0 if model.busy else time.monotonic() - model.last_used
        expiry = datetime.now(UTC) + timedelta(seconds=max(0.0, model.idle_seconds - idle))
    own = {"expires_at": rfc3339(expiry), "size_vram": model.reserved}
    return {**_named(model, model.name), **own, "context_length": served.info.max_model_len if served else 0}


def _modified(model: HostedModel) -> str:
    return rfc3339(datetime.fromtimestamp(model.created, UTC))
