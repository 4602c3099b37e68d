"""`POST /v1/chat/completions`."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.answer import answer
from service.api.body import read_body
from service.calls import style_of
from service.ordering import order_chat
from service.response_shapes import ChatShape
from service.schemas import ChatBody, StreamOptions

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    body = await read_body(request, ChatBody)
    return await answer(
        request,
        body,
        lambda served: order_chat(body, served),
        lambda served, name: ChatShape(
            name,
            served.tokenizer,
            served.fingerprint,
            bool(body.logprobs),
            body.stream_options or StreamOptions(),
            bool(body.return_token_ids),
            style_of(served) if body.functions else None,
        ),
    )
