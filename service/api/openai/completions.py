"""`POST /v1/completions`."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.answering import answer
from service.api.body import read_body
from service.api.openai.completion_order import order_completion
from service.api.openai.schema import CompletionBody
from service.api.openai.shape import CompletionShape
from service.schema.generation import StreamOptions

router = APIRouter()


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    body = await read_body(request, CompletionBody)
    return await answer(
        request,
        body,
        lambda served: order_completion(body, served),
        lambda served, name: CompletionShape(
            name,
            served.tokenizer,
            served.fingerprint,
            body.logprobs is not None,
            body.stream_options or StreamOptions(),
            bool(body.return_token_ids),
        ),
    )
