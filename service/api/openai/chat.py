"""`POST /v1/chat/completions`."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.answering import answer
from service.api.body import read_body
from service.api.openai.schema import ChatBody
from service.api.openai.shape import ChatShape
from service.api.orders import order_chat
from service.schema.generation import StreamOptions
from service.structured.call_style import style_of

router = APIRouter()


@router.post("/v1/chat/completions")
async def chat_completions(request: Request) -> Response:
    body = await read_body(request, ChatBody)
    return await answer(
        request,
        body,
        lambda served: order_chat(body.chat_request(), served),
        lambda served, name: ChatShape(
            name,
            served.tokenizer,
            served.fingerprint,
            bool(body.logprobs),
            body.stream_options or StreamOptions(),
            bool(body.return_token_ids),
            style_of(served) if body.may_call else None,
        ),
    )
