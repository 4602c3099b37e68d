"""`POST .../render`: the token ids that a request would have, for routers that know what each replica has cached."""

from starlette.responses import Response
from typing_extensions import TypedDict

from service.access.record import Policy
from service.api.answering import computed_response
from service.api.anthropic.messages import MessagesBody, edited_request
from service.api.call import Call
from service.api.openai.chat import ChatBody
from service.api.openai.completions import CompletionBody
from service.api.prompt import chat_request, of_chat
from service.api.routes import HELLO, post
from service.api.text import text_request
from service.errors.dialects import ANTHROPIC
from service.generation.request import ModelRequest


class Rendered(TypedDict):
    """The prompt of a request, and the limit of its answer."""

    token_ids: list[int]
    max_tokens: int


HELLO_CHAT = {"messages": HELLO, "max_tokens": 8}


@post("/v1/completions/render", body=CompletionBody, request={"prompt": "Hello"}, answer=list[Rendered])
async def render_completions(call: Call, body: CompletionBody) -> Response:
    """Return the token ids of each prompt of a completion"""
    served = await call.loaded()
    made = await call.on_lane(lambda: text_request(body.text(), served))
    return await computed_response(call, rendered(made))


@post("/v1/chat/completions/render", body=ChatBody, request=HELLO_CHAT, answer=Rendered)
async def render_chat(call: Call, body: ChatBody) -> Response:
    """Return the token ids of the prompt of a chat"""
    await call.loaded()
    return await computed_response(call, rendered(await of_chat(call, body.chat, chat_request))[0])


@post("/v1/messages/render", body=MessagesBody, request=HELLO_CHAT, answer=Rendered, policy=Policy(ANTHROPIC))
async def render_messages(call: Call, body: MessagesBody) -> Response:
    """Return the token ids of the prompt of a message"""
    await call.loaded()
    made, _ = await of_chat(call, body.chat, lambda *chat: edited_request(body.context_management, *chat))
    return await computed_response(call, rendered(made)[0])


def rendered(made: ModelRequest) -> list[Rendered]:
    return [{"token_ids": submit.prompt, "max_tokens": submit.params.max_tokens} for submit in made.submits]
