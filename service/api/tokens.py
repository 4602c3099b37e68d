"""`/tokenize`, `/detokenize`, `/apply-template` and `/tokenizer_info`, in the shapes of vLLM and llama.cpp's server."""

from collections.abc import Sequence
from functools import partial

from pydantic import Field
from starlette.responses import Response
from typing_extensions import TypedDict

from model.sampling_params import check_ids
from model.tokenizers.base import Tokenizer
from service.api.answering import computed_response
from service.api.call import Call
from service.api.media import Media
from service.api.prompt import Chat, check_roles, conversation, encode_chat, encode_text, of_chat
from service.api.routes import HELLO, get, post
from service.errors.errors import InvalidRequest
from service.generation.served import ServedModel
from service.schema.conversation import Message, TemplateBody, plain_messages
from service.schema.fields import MAX_ITEMS, Items, ModelBody, TokenIds, only, optional
from service.schema.tools import OfferBody


class ApplyTemplateBody(ModelBody, TemplateBody, OfferBody):
    """The request body of `POST /apply-template`."""

    harmless = only(chat_template=())
    messages: Items[Message] = Field(max_length=MAX_ITEMS, description="At least one.")

    def check(self) -> None:
        if not self.messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        self.check_continuation(self.messages)
        self.check_computed(self.calls)


class TokenizeBody(ModelBody, TemplateBody, OfferBody):
    """The request body of `POST /tokenize`: a prompt as completions take it, or messages as chat takes them."""

    harmless = only(**ApplyTemplateBody.harmless, parse_special=(True,))
    prompt: str | None = optional("A text. A request has one of `prompt`, `content` and `messages`.")
    content: str | None = optional("A text, as in llama.cpp's server: `add_special` replaces `add_special_tokens`.")
    messages: Items[Message] | None = optional("At least one.", max_length=MAX_ITEMS)
    add_special_tokens: bool | None = optional("Put the model's begin token before the prompt. Default: true.")
    add_special: bool | None = optional("Put the model's begin token before the content. Default: false.")
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
        self.check_computed(self.calls)


class DetokenizeBody(ModelBody):
    """The request body of `POST /detokenize`."""

    tokens: TokenIds = Field(description="Token ids, at most as many as the context holds.")


class TokenPiece(TypedDict):
    """A token and its text, or its bytes where they are not text."""

    id: int
    piece: str | list[int]


class Tokenized(TypedDict):
    count: int
    max_model_len: int
    tokens: list[int] | list[TokenPiece]
    token_strs: list[str] | None


class Detokenized(TypedDict):
    """The text, under the names of vLLM and llama.cpp."""

    prompt: str
    content: str


class AppliedTemplate(TypedDict):
    prompt: str


class TokenizerInfo(TypedDict):
    """The tokenizer as vLLM describes it. null: the model has no such token, or no Jinja template."""

    tokenizer_class: str
    vocab_size: int
    model_max_length: int
    add_bos_token: bool
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    chat_template: str | None


@post("/tokenize", body=TokenizeBody, request={"prompt": "Hello"}, answer=Tokenized)
async def tokenize(call: Call, body: TokenizeBody) -> Response:
    """Tokenize a prompt or a conversation"""

    def of_messages(chat: Chat, served: ServedModel, media: Media) -> Tokenized:
        return described(encode_chat(chat, served, media)[0], body, served)

    chat = partial(chat_of, body.messages or [], body)
    served = await call.loaded()
    if body.messages is None:
        return await computed_response(call, await call.on_lane(lambda: described(encode(body, served), body, served)))
    return await computed_response(call, await of_chat(call, chat, of_messages))


@post("/detokenize", body=DetokenizeBody, request={"tokens": [19556]}, answer=Detokenized)
async def detokenize(call: Call, body: DetokenizeBody) -> Response:
    """Turn token ids into text"""
    served = await call.loaded()
    return await computed_response(call, await call.on_lane(lambda: text_of(body.tokens, served)))


@post("/apply-template", body=ApplyTemplateBody, request={"messages": HELLO}, answer=AppliedTemplate)
async def apply_template(call: Call, body: ApplyTemplateBody) -> Response:
    """Render messages with the chat template"""
    served = await call.loaded()
    return await computed_response(call, await call.on_lane(lambda: rendered(body, served)))


@get("/tokenizer_info", answer=TokenizerInfo)
async def tokenizer_info(call: Call) -> Response:
    """Describe a tokenizer, with its special tokens and the chat template

    That of the model in the query, or of the first model.
    """
    served = await call.loaded()
    return await computed_response(call, await call.on_lane(lambda: info_of(served)))


def info_of(served: ServedModel) -> TokenizerInfo:
    tokenizer, chat = served.tokenizer, served.chat
    end = tokenizer.eos_id if tokenizer.eos_id is not None else next(iter(served.defaults.eos_token_ids), None)
    return {
        "tokenizer_class": type(tokenizer).__name__,
        "vocab_size": tokenizer.vocab_size,
        "model_max_length": served.info.max_model_len,
        "add_bos_token": bool(tokenizer.encode("", add_bos=True, parse_control=False)),
        "bos_token": None if tokenizer.bos_id is None else tokenizer.name(tokenizer.bos_id),
        "eos_token": None if end is None else tokenizer.name(end),
        "pad_token": None,
        "chat_template": None if chat is None else chat.source,
    }


def described(tokens: list[int], body: TokenizeBody, served: ServedModel) -> Tokenized:
    pieces: list[TokenPiece] = [{"id": token, "piece": piece(token, served.tokenizer)} for token in tokens]
    return {
        "count": len(tokens),
        "max_model_len": served.info.max_model_len,
        "tokens": pieces if body.with_pieces else tokens,
        "token_strs": [served.tokenizer.name(token) for token in tokens] if body.return_token_strs else None,
    }


def piece(token: int, tokenizer: Tokenizer) -> str | list[int]:
    """Return a token's text, or its bytes where they are not UTF-8, as llama.cpp has it."""
    data = tokenizer.piece(token)
    try:
        return data.decode() or tokenizer.name(token)
    except UnicodeDecodeError:
        return list(data)


def encode(body: TokenizeBody, served: ServedModel) -> list[int]:
    if body.content is not None:
        return encode_text(served, body.content, add_bos=bool(body.add_special), param="content")
    return encode_text(served, body.prompt or "", add_bos=body.add_special_tokens is not False)


def rendered(body: ApplyTemplateBody, served: ServedModel) -> AppliedTemplate:
    chat = chat_of(body.messages, body)
    check_roles(chat, served)
    format_, messages, options = conversation(chat, served)
    return {"prompt": format_.render(messages, **options)}


def chat_of(messages: Sequence[Message], body: TokenizeBody | ApplyTemplateBody) -> Chat:
    return Chat(plain_messages(messages), body.calls, body.template_options(messages))


def text_of(tokens: list[int], served: ServedModel) -> Detokenized:
    """Return the text of ids. Raises InvalidRequest or ParameterError for more than the context, or unknown ones."""
    limit = served.info.max_model_len
    if len(tokens) > limit:
        message = f"tokens takes at most {limit} ids, the model's context, got {len(tokens)}"
        raise InvalidRequest(message, param="tokens")
    check_ids("tokens", tokens, served.info.vocab_size)
    text = served.tokenizer.decode(tokens, keep_control=True)
    return {"prompt": text, "content": text}
