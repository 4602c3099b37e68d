"""`POST /v1/messages` and `POST /v1/messages/count_tokens`, in Anthropic's shapes."""

from collections.abc import Sequence

from fastapi import Request
from starlette.responses import Response

from service.access.policy import Policy
from service.api.answering import answer, computed_response
from service.api.anthropic.answers import MESSAGE, MESSAGE_CALL, InputTokens, MessageAnswer
from service.api.anthropic.schema import ConversationBody, MessagesBody
from service.api.anthropic.shape import MessageShape
from service.api.examples import HELLO
from service.api.prompt import Chat, chat_request, encode_chat, of_chat
from service.api.routes import post
from service.errors.dialects import ANTHROPIC
from service.generation.served import ServedModel
from service.images.images import DecodedImage
from service.structured.call_reader import reader_of


@post(
    "/v1/messages",
    body=MessagesBody,
    request={"messages": HELLO, "max_tokens": 8},
    answer=MessageAnswer,
    answers=(MESSAGE, MESSAGE_CALL),
    policy=Policy(ANTHROPIC, operation="chat"),
)
async def messages(request: Request, body: MessagesBody) -> Response:
    """Answer a conversation, in Anthropic's Messages API"""
    return await answer(
        request,
        body,
        of_chat(body.chat, chat_request),
        lambda served, name: MessageShape(name, reader_of(served, body.calls), body.shows_thoughts),
    )


@post(
    "/v1/messages/count_tokens",
    body=ConversationBody,
    request={"messages": HELLO},
    answer=InputTokens,
    answers=({"input_tokens": 31},),
    policy=Policy(ANTHROPIC),
)
async def count_tokens(request: Request, body: ConversationBody) -> Response:
    """Count the tokens of a conversation

    The number is that of the prompt that `/v1/messages` would compute.
    """
    return await computed_response(request, body.model, of_chat(body.chat, counted))


def counted(chat: Chat, served: ServedModel, images: Sequence[DecodedImage]) -> InputTokens:
    return {"input_tokens": len(encode_chat(chat, served, images)[0])}
