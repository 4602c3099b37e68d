"""`POST /v1/embeddings`."""

from contextlib import ExitStack

from fastapi import Request
from starlette.responses import Response

from service.access.policy import Policy
from service.api.answering import submit, whole_response
from service.api.embeddings.schema import EmbeddingsBody, embeddings_request
from service.api.embeddings.shape import EMBEDDINGS, EMBEDDINGS_BASE64, EmbeddingList, EmbeddingShape
from service.api.prompt import on_thread
from service.api.routes import post


@post(
    "/v1/embeddings",
    body=EmbeddingsBody,
    request={"input": "A noria."},
    answer=EmbeddingList,
    answers=(EMBEDDINGS, EMBEDDINGS_BASE64),
    policy=Policy(operation="embeddings"),
)
async def embeddings(request: Request, body: EmbeddingsBody) -> Response:
    """Embed one or more texts

    An embedding is the pooled hidden state of a text, scaled to length 1.
    """
    make = on_thread(lambda served: embeddings_request(body, served))
    with ExitStack() as stack:
        served, generation = await submit(stack, request, body, make)
        shape = EmbeddingShape(body.model or served.names[0], body.encoding_format == "base64")
        return await whole_response(request, generation, shape.whole)
