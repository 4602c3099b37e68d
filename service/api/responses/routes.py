"""`POST /v1/responses`."""

from fastapi import Request
from starlette.responses import Response

from service.access.policy import Policy
from service.api.answering import answer
from service.api.prompt import chat_request, of_chat
from service.api.responses.answers import RESPONSE, RESPONSE_CALL, ResponseAnswer
from service.api.responses.schema import ResponsesBody
from service.api.responses.shape import ResponseShape, request_echo
from service.api.routes import post
from service.structured.call_reader import reader_of


@post(
    "/v1/responses",
    body=ResponsesBody,
    request={"input": "Say hello.", "max_output_tokens": 8},
    answer=ResponseAnswer,
    answers=(RESPONSE, RESPONSE_CALL),
    policy=Policy(operation="chat"),
)
async def responses(request: Request, body: ResponsesBody) -> Response:
    """Answer a conversation, in OpenAI's Responses API

    The server stores nothing: each request holds the whole conversation.
    """
    return await answer(
        request,
        body,
        of_chat(body.chat, chat_request),
        lambda served, name: ResponseShape(
            name, request_echo(body, served), reader_of(served, body.calls), body.custom_names, body.namespaces
        ),
    )
