"""`POST /api/chat` and `/api/generate`: their bodies, and the internal requests made of them."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

from starlette.responses import Response

from service.access.record import Policy
from service.api.answering import answered
from service.api.call import Answer, Call
from service.api.ollama.answer_types import ChatAnswer, GeneratedAnswer
from service.api.ollama.keeping import NamedModel
from service.api.ollama.messages import IMAGES, OllamaMessage, plain_messages, with_images
from service.api.ollama.options import AnswerBody
from service.api.ollama.shape import AnswerShape, GeneratedShape, OllamaChatShape, head
from service.api.prompt import Chat, chat_request, of_chat
from service.api.routes import HELLO, json_response, post
from service.api.text import Text, text_request
from service.errors.dialects import OLLAMA
from service.errors.errors import InvalidRequest
from service.generation.request import ModelRequest
from service.schema.conversation import TemplateOptions
from service.schema.fields import MAX_ITEMS, Items, Json, only, optional
from service.schema.options import Names
from service.schema.tools import OfferBody

CHAT, TEXT = Policy(OLLAMA, operation="chat", resumes=True), Policy(OLLAMA, operation="text_completion", resumes=True)
WHOLE = {"stream": False}
LIMIT = "options.num_predict"
"""The client's name of the limit of tokens."""


class OllamaChatBody(AnswerBody, OfferBody):
    """The request body of `POST /api/chat`."""

    messages: Items[OllamaMessage] | None = optional(
        "The conversation. If the last is an assistant message, the answer continues it. Without messages the model is "
        "loaded, or unloaded with `keep_alive` 0.",
        max_length=MAX_ITEMS,
    )

    @property
    def has_prompt(self) -> bool:
        return bool(self.messages)

    def check(self) -> None:
        super().check()
        self.check_computed(self.calls)

    def chat(self) -> Chat:
        """Return the conversation to answer. Raises InvalidRequest. Large schemas take time: not for the event loop."""
        assert self.messages
        continues = self.messages[-1].role == "assistant"
        return replace(
            chat_of(self, plain_messages(self.messages)),
            calls=self.calls,
            template=TemplateOptions(add_generation_prompt=not continues, continue_final_message=continues),
            names=Names("messages", LIMIT, "messages[{}].content"),
        )


class GenerateBody(AnswerBody):
    """The request body of `POST /api/generate`."""

    harmless = only(**AnswerBody.harmless, template=("",), context=([],), width=(), height=(), steps=())
    prompt: str | None = optional("A user's message. Without it the model is loaded, or unloaded with `keep_alive` 0.")
    suffix: str | None = optional("The text after the gap to fill. It needs a model with `[SUFFIX]` and `[PREFIX]`.")
    system: str | None = optional("The system prompt.")
    raw: bool | None = optional("true: the answer continues the prompt, which is no message.")
    images: Items[str] | None = optional(IMAGES, max_length=MAX_ITEMS)

    @property
    def has_prompt(self) -> bool:
        return bool(self.prompt or self.suffix or self.images)

    @property
    def is_message(self) -> bool:
        """Return whether the prompt is a message, not text to continue."""
        return not (self.raw or self.suffix)

    def check(self) -> None:
        super().check()
        name = next((name for name in ("system", "images", "think") if getattr(self, name)), None)
        if name is not None and not self.is_message:
            other = "suffix" if self.suffix else "raw"
            message = f"{name} cannot be used with {other}, because the prompt is then no message"
            raise InvalidRequest(message, param=name)

    def chat(self) -> Chat:
        """Return the conversation to answer, as `OllamaChatBody.chat` does."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return chat_of(self, [*system, {"role": "user", **with_images(self.prompt, self.images, "images")}])


def chat_of(body: AnswerBody, messages: list[Json]) -> Chat:
    """Return the conversation: the messages, and what the body says of their answer. Raises InvalidRequest."""
    return Chat(
        messages,
        constraint=body.constraint,
        options=body.chosen.plain,
        max_tokens=body.chosen.max_tokens,
        logprobs=body.n_logprobs,
        reasoning=body.reasoning,
        names=Names("prompt", LIMIT),
    )


def text_of(body: GenerateBody) -> Text:
    """Return the text to continue. Raises InvalidRequest."""
    chosen, names = body.chosen, Names("prompt", LIMIT)
    return Text(
        [body.prompt or ""],
        body.suffix or None,
        chosen.plain,
        chosen.max_tokens,
        body.n_logprobs,
        body.constraint,
        names=names,
    )


async def _answered(
    call: Call, body: AnswerBody, shape: AnswerShape, target: NamedModel, make: Callable[[], Awaitable[ModelRequest]]
) -> Answer:
    """Return the response to a request with a prompt."""
    target.note_ignored()
    body = body.model_copy(update={"stream": body.stream is not False})
    served = await call.admitted(body, shape)
    body.chosen.check_context(served)
    target.keep()
    return await answered(call, make(), shape)


async def _without_prompt(target: NamedModel, shape: AnswerShape) -> Response:
    """Return the response to a request without a prompt, which only loads or unloads its model."""
    reason = await target.load_or_unload()
    nothing = shape.content("", "", [])
    return json_response({**head(target.public, done=True), **nothing, "done_reason": reason})


@post("/api/chat", body=OllamaChatBody, request={"messages": HELLO, **WHOLE}, answer=ChatAnswer, policy=CHAT)
async def chat(call: Call, body: OllamaChatBody) -> Answer:
    """Answer a conversation, in Ollama's API"""
    target = NamedModel(call, body)
    shape = OllamaChatShape(target.public, call.record, logprobs=bool(body.logprobs), calls=body.calls)
    if not body.has_prompt:
        return await _without_prompt(target, shape)
    return await _answered(call, body, shape, target, lambda: of_chat(call, body.chat, chat_request))


@post("/api/generate", body=GenerateBody, request={"prompt": "Hello.", **WHOLE}, answer=GeneratedAnswer, policy=TEXT)
async def generate(call: Call, body: GenerateBody) -> Answer:
    """Answer a message, continue a text or fill a gap, in Ollama's API"""
    target = NamedModel(call, body)
    shape = GeneratedShape(target.public, call.record, logprobs=bool(body.logprobs))
    if not body.has_prompt:
        return await _without_prompt(target, shape)
    if body.is_message:
        return await _answered(call, body, shape, target, lambda: of_chat(call, body.chat, chat_request))
    make = partial(call.on_lane, lambda: text_request(text_of(body), call.served))
    return await _answered(call, body, shape, target, make)
