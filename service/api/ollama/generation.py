"""`POST /api/chat` and `/api/generate`: their bodies, and the internal requests made of them."""

from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import Request
from starlette.responses import Response

from service.access.record import Policy, RequestRecord
from service.api.answering import answer
from service.api.ollama.answers import ChatAnswer, GeneratedAnswer
from service.api.ollama.keeping import Target
from service.api.ollama.messages import IMAGES, OllamaMessage, plain_messages, with_images
from service.api.ollama.options import AnswerBody
from service.api.ollama.shape import AnswerShape, ChatShape, GeneratedShape, head
from service.api.openai.completions import GapBody, completion_request
from service.api.prompt import Chat, Make, chat_request, of_chat, on_thread
from service.api.routes import HELLO, json_response, post
from service.api.state import State
from service.errors.dialects import OLLAMA
from service.errors.errors import InvalidRequest
from service.generation.request import ModelRequest, ServedModel
from service.http.sse import Lines
from service.schema.conversation import TemplateOptions
from service.schema.fields import MAX_ITEMS, Items, Json, only, optional
from service.schema.generation import GenerationBody
from service.schema.tools import AllowedCalls, OfferBody
from service.structured.call_reader import reader_of
from service.structured.constraint import Constraint

CHAT, TEXT = Policy(OLLAMA, operation="chat"), Policy(OLLAMA, operation="text_completion")
WHOLE = {"stream": False}
FIRST = Lines()
"""The framing of a stream whose model is loading."""


class OllamaChatBody(AnswerBody, OfferBody):
    """The request body of `POST /api/chat`."""

    messages: Items[OllamaMessage] | None = optional(
        "The conversation. If the last is an assistant message, the answer continues it. Without messages the model is "
        "loaded, or unloaded with `keep_alive` 0.",
        max_length=MAX_ITEMS,
    )

    def check(self) -> None:
        super().check()
        self.calls  # noqa: B018 - it raises

    def chat(self) -> Chat:
        """What the body asks, as `Chat`. Raises InvalidRequest. Large schemas take time: not for the event loop."""
        assert self.messages
        continues = self.messages[-1].role == "assistant"
        return replace(
            chat_of(self, plain_messages(self.messages)),
            calls=self.calls,
            template=TemplateOptions(add_generation_prompt=not continues, continue_final_message=continues),
            messages_field="messages",
            content_field="messages[{}].content",
        )


class GenerateBody(AnswerBody):
    """The request body of `POST /api/generate`."""

    harmless = only(**AnswerBody.harmless, template=("",), context=([],), width=(), height=(), steps=())
    prompt: str | None = optional(
        "The message of the user. Without it the model is loaded, or unloaded with `keep_alive` 0."
    )
    suffix: str | None = optional(
        "The text after the answer: the model fills the gap. It needs a model with `[SUFFIX]` and `[PREFIX]`."
    )
    system: str | None = optional("The system prompt.")
    raw: bool | None = optional("true: the answer continues the prompt, which is no message.")
    images: Items[str] | None = optional(IMAGES, max_length=MAX_ITEMS)

    @property
    def is_message(self) -> bool:
        """Whether the prompt is a message, not text to continue."""
        return not (self.raw or self.suffix)

    @property
    def has_prompt(self) -> bool:
        """Whether there is something to answer."""
        return bool(self.prompt or self.suffix or self.images)

    def check(self) -> None:
        super().check()
        name = next((name for name in ("system", "images", "think") if getattr(self, name)), None)
        if name is not None and not self.is_message:
            other = "suffix" if self.suffix else "raw"
            message = f"{name} cannot be used with {other}, because the prompt is then no message"
            raise InvalidRequest(message, param=name)

    def chat(self) -> Chat:
        """As `OllamaChatBody.chat`."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return chat_of(self, [*system, {"role": "user", **with_images(self.prompt, self.images, "images")}])


class RawBody(GapBody):
    """The text to continue, and the fields, of a `GenerateBody` as completions take them."""

    max_tokens_field = "options.num_predict"
    asked: Any = None

    @property
    def prompts(self) -> list[str]:
        return [self.asked.prompt or ""]

    @property
    def n_logprobs(self) -> int | None:
        return self.asked.n_logprobs

    @property
    def constraint(self) -> Constraint | None:
        return self.asked.constraint


def chat_of(body: AnswerBody, messages: list[Json]) -> Chat:
    """The messages with what the body says of their answer. Raises InvalidRequest."""
    return Chat(
        messages,
        constraint=body.constraint,
        fields=GenerationBody.model_construct(**body.chosen.fields),
        max_tokens=body.chosen.max_tokens,
        logprobs=body.n_logprobs,
        reasoning=body.reasoning,
        messages_field="prompt",
        max_tokens_field="options.num_predict",
    )


def raw_request(body: GenerateBody, served: ServedModel) -> ModelRequest:
    """The engine's request for text to continue. It tokenizes: not for the event loop."""
    fields = {**body.chosen.fields, "suffix": body.suffix or None}
    return completion_request(RawBody.model_construct(None, asked=body, **fields), served)


async def _answered(
    request: Request,
    body: AnswerBody,
    shape: type[AnswerShape],
    make: Make[ModelRequest] | None,
    calls: AllowedCalls = AllowedCalls(),  # noqa: B008 - frozen
) -> Response:
    """The response to a request. One without a prompt, for which `make` is None, only loads or unloads its model."""
    target = Target(request, body)
    if make is None:
        reason = await target.load_or_unload()
        nothing = shape(target.shown, target.record).content("", "", [])
        return json_response({**head(target.shown, done=True), **nothing, "done_reason": reason})
    target.note_ignored()

    async def made(state: State, record: RequestRecord, served: ServedModel) -> ModelRequest:
        body.chosen.check_context(served)
        return await make(state, record, served)

    def shaped(served: ServedModel, name: str) -> AnswerShape:
        target.keep()
        tokenizer = served.tokenizer if body.logprobs else None
        return shape(target.shown, target.record, tokenizer, reader_of(served, calls))

    asked = body.model_copy(update={"model": target.name, "stream": body.stream is not False})
    return await answer(request, asked, made, shaped, first=FIRST)


@post("/api/chat", body=OllamaChatBody, request={"messages": HELLO, **WHOLE}, answer=ChatAnswer, policy=CHAT)
async def chat(request: Request, body: OllamaChatBody) -> Response:
    """Answer a conversation, in Ollama's API"""
    make = of_chat(body.chat, chat_request) if body.messages else None
    return await _answered(request, body, ChatShape, make, body.calls)


@post("/api/generate", body=GenerateBody, request={"prompt": "Hello.", **WHOLE}, answer=GeneratedAnswer, policy=TEXT)
async def generate(request: Request, body: GenerateBody) -> Response:
    """Answer a message, continue a text or fill a gap, in Ollama's API"""
    make = of_chat(body.chat, chat_request) if body.is_message else on_thread(partial(raw_request, body))
    return await _answered(request, body, GeneratedShape, make if body.has_prompt else None)
