"""`POST /v1/responses`, and the number of tokens of its prompt."""

from collections.abc import Sequence

from fastapi import Request
from starlette.responses import Response

from service.access.record import Policy, RequestRecord
from service.api.answering import answer, computed_response
from service.api.media import Decoded
from service.api.prompt import Chat, encode_chat, of_chat
from service.api.responses.answers import CountedInput, ResponseAnswer
from service.api.responses.background import in_background
from service.api.responses.body import ResponsesBody, TokensBody
from service.api.responses.creation import Creation
from service.api.responses.history import history_of
from service.api.responses.shape import ErrorEvents
from service.api.responses.truncation import fitted
from service.api.resuming import refuse_resume
from service.api.routes import post
from service.api.state import State
from service.generation.request import ServedModel


@post(
    "/v1/responses",
    body=ResponsesBody,
    request={"input": "Say hello.", "max_output_tokens": 8},
    answer=ResponseAnswer,
    policy=Policy(operation="chat"),
)
async def responses(request: Request, body: ResponsesBody) -> Response:
    """Answer a conversation, in OpenAI's Responses API

    The server stores the response unless `store` is false.
    """
    refuse_resume(request)
    if body.background:
        return await in_background(request, body)
    creation = Creation(request, body)
    return await answer(request, body, creation.make, creation.shape, creation.save, ErrorEvents())


@post("/v1/responses/input_tokens", body=TokensBody, request={"input": "Say hello."}, answer=CountedInput)
async def input_tokens(request: Request, body: TokensBody) -> Response:
    """Count the tokens of the prompt of a response"""

    def counted(chat: Chat, served: ServedModel, media: Sequence[Decoded]) -> CountedInput:
        if body.truncation == "auto":
            tokens = fitted(chat, served, media).prompts[0].tokens
        else:
            tokens = encode_chat(chat, served, media)[0]
        return {"object": "response.input_tokens", "input_tokens": len(tokens)}

    async def make(state: State, record: RequestRecord, served: ServedModel) -> CountedInput:
        async with history_of(state, record, body) as history:
            chat = of_chat(lambda: body.chat(history.items(), history.resolved(body.input)), counted)
            return await chat(state, record, served)

    return await computed_response(request, body.model, make)
