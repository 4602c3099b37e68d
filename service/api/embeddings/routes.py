"""`POST /v1/embeddings`."""

from contextlib import ExitStack

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.answering import gathered, started
from service.api.body import read_body
from service.api.embeddings.schema import EmbeddingsBody, order_embeddings
from service.api.embeddings.shape import EmbeddingShape

router = APIRouter()


@router.post("/v1/embeddings")
async def embeddings(request: Request) -> Response:
    body = await read_body(request, EmbeddingsBody)
    with ExitStack() as stack:
        served, generation = await started(stack, request, body, lambda served: order_embeddings(body, served))
        shape = EmbeddingShape(body.model or served.names[0], body.encoding_format == "base64")
        return await gathered(request, generation, shape.whole)
