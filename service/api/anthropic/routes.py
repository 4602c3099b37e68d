"""`POST /v1/messages` and `POST /v1/messages/count_tokens`, in Anthropic's shapes."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.answering import answer
from service.api.anthropic.schema import ConversationBody, MessagesBody
from service.api.anthropic.shape import MessageShape
from service.api.body import read_body
from service.api.encoding import encode_chat
from service.api.orders import order_chat
from service.api.tokens.routes import at_work
from service.generation.served import ServedModel
from service.structured.call_reader import reader_of

router = APIRouter()


@router.post("/v1/messages")
async def messages(request: Request) -> Response:
    body = await read_body(request, MessagesBody)
    return await answer(
        request,
        body,
        lambda served: order_chat(body.chat_request(), served),
        lambda served, name: MessageShape(name, reader_of(served, body.may_call)),
    )


@router.post("/v1/messages/count_tokens")
async def count_tokens(request: Request) -> Response:
    body = await read_body(request, ConversationBody)
    return await at_work(request, body.model, lambda served: counted(body, served))


def counted(body: ConversationBody, served: ServedModel) -> dict[str, int]:
    return {"input_tokens": len(encode_chat(body.chat_request(), served))}
