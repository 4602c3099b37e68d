"""`POST /v1/messages` and `POST /v1/messages/count_tokens`, in Anthropic's shapes."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.answering import answer
from service.api.anthropic.schema import ConversationBody, MessagesBody
from service.api.anthropic.shape import MessageShape
from service.api.body import read_body
from service.api.encoding import encode_chat, order_chat, renamed
from service.api.tokens.routes import at_work
from service.generation.served import ServedModel
from service.structured.call_style import reader_of

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
