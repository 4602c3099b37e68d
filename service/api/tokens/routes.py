"""`POST /tokenize`, `POST /detokenize` and `POST /apply-template`, in the shapes of vLLM and of llama.cpp's server, and
vLLM's `GET /tokenizer_info`.

Each `POST` counts as a request in flight.
"""

from collections.abc import Sequence
from functools import partial

from fastapi import Request
from starlette.responses import Response
from typing_extensions import TypedDict

from model.sampling_params import check_ids
from model.tokenizers.base import Tokenizer
from service.api.answering import computed_response
from service.api.examples import HELLO
from service.api.prompt import Chat, check_roles, conversation, encode_chat, encode_text, of_chat, on_thread
from service.api.routes import get, json_response, post
from service.api.tokens.schema import ApplyTemplateBody, DetokenizeBody, TokenizeBody
from service.errors.errors import InvalidRequest
from service.generation.served import ServedModel
from service.images.images import DecodedImage
from service.schema.conversation import Message, plain_messages


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


TOKENIZED: Tokenized = {"count": 1, "max_model_len": 8192, "tokens": [19556], "token_strs": None}
HELLO_PIECE: TokenPiece = {"id": 19556, "piece": "Hello"}
PIECES: Tokenized = {**TOKENIZED, "tokens": [HELLO_PIECE]}
INFO: TokenizerInfo = {
    "tokenizer_class": "HuggingFaceTokenizer",
    "vocab_size": 49152,
    "model_max_length": 8192,
    "add_bos_token": False,
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "pad_token": None,
    "chat_template": "{% for message in messages %}...{% endfor %}",
}
TEMPLATE: AppliedTemplate = {"prompt": "<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n"}


@post("/tokenize", body=TokenizeBody, request={"prompt": "Hello"}, answer=Tokenized, answers=(TOKENIZED, PIECES))
async def tokenize(request: Request, body: TokenizeBody) -> Response:
    """Tokenize a prompt or a conversation"""

    def of_messages(chat: Chat, served: ServedModel, images: Sequence[DecodedImage]) -> Tokenized:
        return described(encode_chat(chat, served, images)[0], body, served)

    chat = partial(chat_of, body.messages or [], body)
    of_text = on_thread(lambda served: described(encode(body, served), body, served))
    make = of_text if body.messages is None else of_chat(chat, of_messages)
    return await computed_response(request, body.model, make)


@post(
    "/detokenize",
    body=DetokenizeBody,
    request={"tokens": [19556]},
    answer=Detokenized,
    answers=({"prompt": "Hello", "content": "Hello"},),
)
async def detokenize(request: Request, body: DetokenizeBody) -> Response:
    """Turn token ids into text"""
    return await computed_response(request, body.model, on_thread(lambda served: text_of(body.tokens, served)))


@post(
    "/apply-template",
    body=ApplyTemplateBody,
    request={"messages": HELLO},
    answer=AppliedTemplate,
    answers=(TEMPLATE,),
)
async def apply_template(request: Request, body: ApplyTemplateBody) -> Response:
    """Render messages with the chat template"""
    return await computed_response(request, body.model, on_thread(lambda served: rendered(body, served)))


@get("/tokenizer_info", answer=TokenizerInfo, answers=(INFO,))
async def tokenizer_info(request: Request) -> Response:
    """Describe the tokenizer, with its special tokens and the chat template"""
    return json_response(info_of(request.app.state.noria.admission.require()))


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
    return {
        "count": len(tokens),
        "max_model_len": served.info.max_model_len,
        "tokens": pieces(tokens, served.tokenizer) if body.with_pieces else tokens,
        "token_strs": [served.tokenizer.name(token) for token in tokens] if body.return_token_strs else None,
    }


def pieces(tokens: list[int], tokenizer: Tokenizer) -> list[TokenPiece]:
    return [{"id": token, "piece": piece(token, tokenizer)} for token in tokens]


def piece(token: int, tokenizer: Tokenizer) -> str | list[int]:
    """A token's text, or its bytes where they are not UTF-8, as llama.cpp has it."""
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
    return Chat(plain_messages(messages), body.calls, body.template_options)


def text_of(tokens: list[int], served: ServedModel) -> Detokenized:
    """Raises InvalidRequest or ParameterError for more ids than the context, or foreign ones."""
    limit = served.info.max_model_len
    if len(tokens) > limit:
        raise InvalidRequest(
            f"tokens takes at most {limit} ids, the model's context, got {len(tokens)}", param="tokens"
        )
    check_ids("tokens", tokens, served.info.vocab_size)
    text = served.tokenizer.decode(tokens, keep_control=True)
    return {"prompt": text, "content": text}
