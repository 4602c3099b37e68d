"""`POST /api/embed` and the older `/api/embeddings`."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

from pydantic import Field
from starlette.responses import Response

from service.access.record import Policy
from service.api.answering import generated, whole_response
from service.api.call import Call
from service.api.embeddings import embeddings_request, unit_vector
from service.api.ollama.answer_types import Embedded, EmbeddedOne
from service.api.ollama.keeping import NamedModel
from service.api.ollama.options import KeepingBody
from service.api.ollama.shape import durations
from service.api.routes import json_response, post
from service.errors.dialects import OLLAMA
from service.generation.choice import Delta
from service.generation.request import ModelRequest
from service.generation.served import ServedModel
from service.generation.usage import Timings, Usage
from service.schema.fields import MAX_PROMPTS, Items, Json, expect, only, optional

Inputs = Annotated[str | Items[str], expect("a string or a list of strings")]
POLICY = Policy(OLLAMA, operation="embeddings")


class OneBody(KeepingBody):
    """The request body of `POST /api/embeddings`."""

    noticed = only(**KeepingBody.noticed, options=())
    prompt: str | None = optional("The text.")


class EmbedBody(KeepingBody):
    """The request body of `POST /api/embed`."""

    noticed = OneBody.noticed
    input: Inputs = Field(description=f"A string, or up to {MAX_PROMPTS} of them.")
    truncate: bool | None = optional("false: refuse texts that do not fit the context. Default: true, cut their ends.")
    dimensions: int | None = optional("The length of an embedding: only the model's own.", ge=1, le=2**31 - 1)

    def request(self, served: ServedModel) -> ModelRequest:
        """Return the engine's request. It tokenizes: not for the event loop. Raises InvalidRequest."""
        texts = [self.input] if isinstance(self.input, str) else self.input
        items = texts if self.truncate is False else [_cut(text, served) for text in texts]
        return embeddings_request(items, served, self.dimensions)


@post("/api/embed", body=EmbedBody, request={"input": "A noria."}, answer=Embedded, policy=POLICY)
async def embed(call: Call, body: EmbedBody) -> Response:
    """Embed one or more texts, in Ollama's API

    An embedding is the mean of the hidden states of a text, scaled to length 1.
    """
    return await _embedded(call, body, lambda vectors, more: {"embeddings": vectors, **more})


@post("/api/embeddings", body=OneBody, request={"prompt": "A noria."}, answer=EmbeddedOne, policy=POLICY)
async def embeddings(call: Call, body: OneBody) -> Response:
    """Embed one text, in Ollama's older API"""
    one = EmbedBody.model_construct(None, input=body.prompt or "", **dict(body))
    return await _embedded(call, one, lambda vectors, more: {"embedding": vectors[0] if vectors else []})


async def _embedded(call: Call, body: EmbedBody, write: Callable[[list[Any], Json], Json]) -> Response:
    """Embed some texts, and answer as `write` writes the vectors and other facts. Without texts the model is loaded."""
    target = NamedModel(call, body)

    def answer(vectors: list[Any], usage: Usage) -> Json:
        counts = {"prompt_eval_count": usage.prompt}
        return write(vectors, {"model": target.public, **durations(call.record), **counts})

    if not body.input:
        await target.load_or_unload()
        return json_response(answer([], Usage()))
    target.note_ignored()

    def written(parts: Sequence[Delta], usage: Usage, timings: Timings) -> Json:
        return answer([unit_vector(delta.embedding) for delta in parts], usage)

    served = await call.admitted(body)
    generation = await generated(call, call.on_lane(lambda: body.request(served)))
    target.keep()
    return await whole_response(call, generation, written)


def _cut(text: str, served: ServedModel) -> list[int]:
    """Return the tokens of a text, as many as fit the context."""
    start = text.encode()[: served.max_prompt_bytes].decode(errors="ignore")
    return served.tokenizer.encode(start, add_bos=True, parse_control=True)[: served.info.max_model_len]
