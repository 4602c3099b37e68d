"""`POST /v1/embeddings`: prompts whose hidden states are pooled. The vectors have length 1."""

import math
import struct
import uuid
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, cast

import orjson
from pydantic import Field
from starlette.responses import Response
from typing_extensions import TypedDict

from model.sampling_params import SamplingParams
from service.access.record import Policy
from service.api.answering import generated, whole_response
from service.api.call import Call
from service.api.prompt import check_prompt, encode_text
from service.api.routes import post
from service.engine.messages import Submit
from service.errors.errors import InvalidRequest
from service.generation.choice import Delta
from service.generation.request import ModelRequest
from service.generation.served import ServedModel
from service.generation.usage import Timings, Usage
from service.schema.fields import MAX_PROMPTS, Json, ModelBody, Prompts, check_prompts, listed, only, optional, synonym
from service.schema.generation import MAX_USER
from service.schema.options import Names

Pooling = Literal["mean", "last"]


class EmbeddingsBody(ModelBody):
    """The request body of `POST /v1/embeddings`."""

    harmless = only(
        add_special_tokens=(True,),
        embed_dtype=("float32",),
        endianness=("little",),
        normalize=(True,),
        priority=(0,),
        truncate_prompt_tokens=(),
        output_dtype=("float",),
    )
    synonyms = MappingProxyType({"output_dimension": "dimensions"})
    input: Prompts = Field(description=f"A string or token ids, or a list of up to {MAX_PROMPTS} of either.")
    encoding_format: Literal["float", "base64"] | None = optional(
        "`float`: a list of numbers; `base64`: the bytes of little-endian float32 numbers. Default: float."
    )
    dimensions: int | None = optional("The length of an embedding: only the model's own.", ge=1, le=2**31 - 1)
    output_dimension: int | None = synonym("dimensions", "Mistral's", ge=1, le=2**31 - 1)
    metadata: Json | None = optional("Facts for the client. They have no effect.")
    pooling: Pooling | None = optional("The mean of all tokens' hidden states, or the last token's. Default: mean.")
    user: str | None = optional("The end user. The log has a hash of it.", max_length=MAX_USER)

    @property
    def end_user(self) -> str | None:
        return self.user

    def check(self) -> None:
        check_prompts("input", listed(self.input))

    def request(self, served: ServedModel) -> ModelRequest:
        """Return the engine's request, as `embeddings_request` makes it."""
        name, dimensions = self.given_as("dimensions"), self.agreed("dimensions")
        return embeddings_request(self.input, served, dimensions, name, self.pooling)


def embeddings_request(
    items: Any, served: ServedModel, dimensions: int | None, name: str = "dimensions", pooling: Pooling | None = None
) -> ModelRequest:
    """Return the engine's request. It tokenizes: not for the event loop. Raises ParameterError or InvalidRequest.

    `name` is the client's name of `dimensions`.
    """
    if dimensions not in (None, served.info.dim):
        message = f"{name} must be {served.info.dim}, the width of this model, got {dimensions}"
        raise InvalidRequest(message, param=name)
    params = SamplingParams(max_tokens=0, embed=pooling or "mean")
    return ModelRequest(tuple(_submit(item, params, served) for item in listed(items)))


def _submit(item: str | list[int], params: SamplingParams, served: ServedModel) -> Submit:
    tokens = encode_text(served, item, param="input") if isinstance(item, str) else item
    check_prompt(tokens, 0, served, Names("input"))
    return Submit(0, tokens, params, adapter=served.adapter_number)


class Embedding(TypedDict):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(TypedDict):
    """The answer of `POST /v1/embeddings`."""

    id: str
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    timings: Timings


@dataclass(frozen=True, slots=True)
class EmbeddingShape:
    """Writes the whole answer of a request for embeddings."""

    model: str
    base64: bool

    def whole(self, parts: Sequence[Delta], usage: Usage, timings: Timings) -> EmbeddingList:
        return {
            "id": f"embd-{uuid.uuid4().hex}",
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": unit_vector(delta.embedding, self.base64)}
                for index, delta in enumerate(parts)
            ],
            "model": self.model,
            "usage": {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt},
            "timings": timings,
        }


def unit_vector(embedding: Sequence[float], base64: bool = False) -> list[float] | str:
    """Scale an embedding to length 1, and write it as JSON or in base64; both hold the same float32 values.

    orjson encodes each list at once. A thousand Python lists of numbers would block the interpreter later.
    """
    length = math.hypot(*embedding) or 1.0
    layout = f"<{len(embedding)}f"
    data = struct.pack(layout, *(value / length for value in embedding))
    if base64:
        return b64encode(data).decode()
    return cast("list[float]", orjson.Fragment(orjson.dumps(struct.unpack(layout, data))))


@post(
    "/v1/embeddings",
    body=EmbeddingsBody,
    request={"input": "A noria."},
    answer=EmbeddingList,
    policy=Policy(operation="embeddings"),
)
async def embeddings(call: Call, body: EmbeddingsBody) -> Response:
    """Embed one or more texts

    An embedding is the pooled hidden state of a text, scaled to length 1.
    """
    served = await call.admitted(body)
    generation = await generated(call, call.on_lane(lambda: body.request(served)))
    shape = EmbeddingShape(body.model or served.names[0], body.encoding_format == "base64")
    return await whole_response(call, generation, shape.whole)
