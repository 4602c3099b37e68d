"""`POST /v1/responses`, and the number of tokens of its prompt."""

from starlette.responses import Response

from service.access.record import Policy
from service.api.answering import answered, computed_response
from service.api.call import Answer, Call
from service.api.media import Media
from service.api.prompt import Chat, encode_chat, of_chat
from service.api.responses.answer_types import CountedInput, ResponseAnswer
from service.api.responses.background import in_background
from service.api.responses.body import ResponsesBody, TokensBody
from service.api.responses.creation import Creation
from service.api.responses.history import history_of
from service.api.responses.truncation import fitted
from service.api.routes import post
from service.generation.served import ServedModel


@post(
    "/v1/responses",
    body=ResponsesBody,
    request={"input": "Say hello.", "max_output_tokens": 8},
    answer=ResponseAnswer,
    policy=Policy(operation="chat", resumes=True),
)
async def responses(call: Call, body: ResponsesBody) -> Answer:
    """Answer a conversation, in OpenAI's Responses API

    The server stores the response unless `store` is false.
    """
    if body.background:
        return await in_background(call, body)
    creation = Creation(call, body)
    await call.admitted(body, creation.shape)
    return await answered(call, creation.made(), creation.shape, creation.save)


@post("/v1/responses/input_tokens", body=TokensBody, request={"input": "Say hello."}, answer=CountedInput)
async def input_tokens(call: Call, body: TokensBody) -> Response:
    """Count the tokens of the prompt of a response"""

    def counted(chat: Chat, served: ServedModel, media: Media) -> CountedInput:
        if body.truncation == "auto":
            tokens = fitted(chat, served, media).submits[0].prompt
        else:
            tokens = encode_chat(chat, served, media)[0]
        return {"object": "response.input_tokens", "input_tokens": len(tokens)}

    await call.loaded()
    history = await history_of(call, body)
    return await computed_response(
        call, await of_chat(call, lambda: body.chat(history.items(), history.resolved(body.input)), counted)
    )
