"""`POST /v1/messages` and `POST /v1/messages/count_tokens`, in Anthropic's shapes."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.answer import answer
from service.api.body import read_body
from service.api.tokens import at_work
from service.calls import reader_of
from service.messages.schema import ConversationBody, MessagesBody
from service.messages.shape import MessageShape
from service.ordering import encode_chat, order_chat, renamed
from service.served import ServedModel

router = APIRouter()


@router.post("/v1/messages")
async def messages(request: Request) -> Response:
    body = await read_body(request, MessagesBody)
    return await answer(
        request,
        body,
        lambda served: renamed(order_chat(body.as_chat(), served), "output_config.format"),
        lambda served, name: MessageShape(name, reader_of(served, body.may_call)),
    )


@router.post("/v1/messages/count_tokens")
async def count_tokens(request: Request) -> Response:
    body = await read_body(request, ConversationBody)
    return await at_work(request, body.model, lambda served: {"input_tokens": len(encoded(body, served))})


def encoded(body: ConversationBody, served: ServedModel) -> list[int]:
    chat = body.as_chat()
    messages = [message.plain() for message in chat.messages]
    return encode_chat(served, messages, chat.functions, **chat.template_options)
