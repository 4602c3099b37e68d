"""The bodies of `/tokenize`, `/detokenize` and `/apply-template`."""

from pydantic import Field

from service.errors.errors import InvalidRequest
from service.schema.conversation import Message, TemplateBody
from service.schema.fields import MAX_ITEMS, MODEL, Body, Items, TokenIds, only, optional
from service.schema.tools import OfferBody


class ApplyTemplateBody(TemplateBody, OfferBody):
    """`POST /apply-template`."""

    harmless = only(chat_template=())
    model: str | None = optional(MODEL)
    messages: Items[Message] = Field(max_length=MAX_ITEMS, description="At least one.")

    def check(self) -> None:
        if not self.messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        self.check_continuation(self.messages)
        self.calls  # noqa: B018 - it raises


class TokenizeBody(TemplateBody, OfferBody):
    """`POST /tokenize`: a prompt as completions take it, or messages as chat takes them."""

    harmless = only(**ApplyTemplateBody.harmless, parse_special=(True,))
    model: str | None = optional(MODEL)
    prompt: str | None = optional("A text. A request has one of `prompt`, `content` and `messages`.")
    content: str | None = optional("A text, as in llama.cpp's server: `add_special` replaces `add_special_tokens`.")
    messages: Items[Message] | None = optional("At least one.", max_length=MAX_ITEMS)
    add_special_tokens: bool | None = optional("Adds the model's begin token before the prompt. Default: true.")
    add_special: bool | None = optional("Adds the model's begin token before the content. Default: false.")
    return_token_strs: bool | None = optional("The answer also has `token_strs`, the name of each token.")
    with_pieces: bool | None = optional(
        "Each of `tokens` is an object with its id and its text. A piece that is not UTF-8 is a list of bytes."
    )

    def check(self) -> None:
        if [self.prompt, self.content, self.messages].count(None) != 2:
            raise InvalidRequest("send one of prompt, content and messages", param="prompt")
        if self.messages is not None and not self.messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        if self.messages is not None and self.add_special_tokens:
            message = "add_special_tokens is not supported with messages: the chat format adds its own"
            raise InvalidRequest(message, param="add_special_tokens")
        if self.add_special is not None and self.content is None:
            raise InvalidRequest("add_special needs content", param="add_special")
        if self.add_special_tokens is not None and self.content is not None:
            raise InvalidRequest("content takes add_special, not add_special_tokens", param="content")
        for name in (*TemplateBody.model_fields, *OfferBody.model_fields):
            if self.messages is None and getattr(self, name) not in (None, []):
                raise InvalidRequest(f"{name} needs messages", param=name)
        self.check_continuation(self.messages or [])
        self.calls  # noqa: B018 - it raises


class DetokenizeBody(Body):
    """`POST /detokenize`."""

    model: str | None = optional(MODEL)
    tokens: TokenIds = Field(description="Token ids, at most as many as the context holds.")
