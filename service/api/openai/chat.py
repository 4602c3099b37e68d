"""`POST /v1/chat/completions`."""

from fastapi import Request
from starlette.responses import Response

from service.access.policy import Policy
from service.api.answering import answer
from service.api.examples import HELLO
from service.api.openai.answers import CHAT, CHAT_CALL, ChatCompletion
from service.api.openai.schema import ChatBody
from service.api.openai.shape import ChatShape
from service.api.prompt import chat_request, of_chat
from service.api.routes import post
from service.schema.generation import StreamOptions
from service.structured.call_style import style_of


@post(
    "/v1/chat/completions",
    body=ChatBody,
    request={"messages": HELLO, "max_tokens": 8},
    answer=ChatCompletion,
    answers=(CHAT, CHAT_CALL),
    policy=Policy(operation="chat"),
)
async def chat_completions(request: Request, body: ChatBody) -> Response:
    """Answer a conversation

    Without a token limit the answer may fill the context.
    """
    return await answer(
        request,
        body,
        of_chat(body.chat, chat_request),
        lambda served, name: ChatShape(
            name,
            served.tokenizer,
            served.fingerprint,
            body.n_logprobs is not None,
            body.stream_options or StreamOptions(),
            bool(body.return_token_ids),
            style_of(served) if body.calls.functions else None,
            body.include_reasoning is not False,
        ),
    )
