"""`POST /tokenize`, `POST /detokenize` and `POST /apply-template`, in the shapes of vLLM and of llama.cpp's server.

All take a place in the queue while they work.
"""

from collections.abc import Callable, Sequence
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from model.sampling_params import check_ids
from model.tokenizers.base import Tokenizer
from service.api.admission import State
from service.api.body import read_body
from service.api.chat_request import ChatRequest
from service.api.encoding import conversation, encode_chat, encode_text
from service.api.tokens.schema import ApplyTemplateBody, DetokenizeBody, TokenizeBody
from service.generation.served import ServedModel
from service.http.errors import InvalidRequest
from service.schema.conversation import Message

router = APIRouter()


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    body = await read_body(request, TokenizeBody)
    return await at_work(request, body.model, lambda served: tokenized(body, served))


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    body = await read_body(request, DetokenizeBody)
    return await at_work(request, body.model, lambda served: text_of(body.tokens, served))


@router.post("/apply-template")
async def apply_template(request: Request) -> Response:
    body = await read_body(request, ApplyTemplateBody)
    return await at_work(request, body.model, lambda served: {"prompt": rendered(body, served)})


async def at_work(request: Request, model: str | None, work: Callable[[ServedModel], dict[str, Any]]) -> Response:
    """The JSON of what `work` makes of the served model, away from the event loop."""
    state: State = request.app.state.noria
    with state.admission.admitted():
        served = state.admission.require(model)
        content = await state.admission.off_loop(lambda: orjson.dumps(work(served)))
    return Response(content, media_type="application/json")


def tokenized(body: TokenizeBody, served: ServedModel) -> dict[str, Any]:
    tokens = encode(body, served)
    pieces = [{"id": token, "piece": piece(token, served.tokenizer)} for token in tokens] if body.with_pieces else None
    return {
        "count": len(tokens),
        "max_model_len": served.info.max_model_len,
        "tokens": tokens if pieces is None else pieces,
        "token_strs": [served.tokenizer.name(token) for token in tokens] if body.return_token_strs else None,
    }


def piece(token: int, tokenizer: Tokenizer) -> str | list[int]:
    """llama.cpp's: a token's text, or its bytes where they are no text."""
    data = tokenizer.piece(token)
    try:
        return data.decode() or tokenizer.name(token)
    except UnicodeDecodeError:
        return list(data)


def encode(body: TokenizeBody, served: ServedModel) -> list[int]:
    if body.content is not None:
        return encode_text(served, body.content, add_bos=bool(body.add_special), param="content")
    if body.messages is None:
        return encode_text(served, body.prompt or "", add_bos=body.add_special_tokens is not False)
    return encode_chat(request_of(body.messages, body), served)


def rendered(body: ApplyTemplateBody, served: ServedModel) -> str:
    chat, messages, options = conversation(request_of(body.messages, body), served)
    return chat.render(messages, **options)


def request_of(messages: Sequence[Message], body: TokenizeBody | ApplyTemplateBody) -> ChatRequest:
    return ChatRequest([message.plain() for message in messages], body.allowed_calls(), body.template_options)


def text_of(tokens: list[int], served: ServedModel) -> dict[str, Any]:
    """The text, under the names of vLLM and llama.cpp.

    Raises InvalidRequest or ParameterError for more ids than the context, or foreign ones.
    """
    limit = served.info.max_model_len
    if len(tokens) > limit:
        raise InvalidRequest(
            f"tokens takes at most {limit} ids, the model's context, got {len(tokens)}", param="tokens"
        )
    check_ids("tokens", tokens, served.info.vocab_size)
    text = served.tokenizer.decode(tokens, keep_control=True)
    return {"prompt": text, "content": text}
