"""`POST /v1/responses`."""

from fastapi import Request
from starlette.responses import Response

from service.api.answering import answer
from service.api.encoding import order_chat, renamed
from service.api.responses.answers import RESPONSE, RESPONSE_CALL, ResponseAnswer
from service.api.responses.schema import ResponsesBody
from service.api.responses.shape import ResponseShape, repeated
from service.api.routes import post
from service.http.policy import Policy
from service.structured.call_style import reader_of


@post(
    "/v1/responses",
    body=ResponsesBody,
    request={"input": "Say hello.", "max_output_tokens": 8},
    answer=ResponseAnswer,
    answers=(RESPONSE, RESPONSE_CALL),
    policy=Policy(generates=True),
)
async def responses(request: Request, body: ResponsesBody) -> Response:
    """Answer a conversation, in OpenAI's Responses API

    The server stores nothing: each request holds the whole conversation.
    """
    return await answer(
        request,
        body,
        lambda served: renamed(order_chat(body.as_chat(), served), "text.format"),
        lambda served, name: ResponseShape(name, repeated(body, served), reader_of(served, body.may_call)),
    )
