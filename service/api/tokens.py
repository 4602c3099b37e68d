"""`POST /tokenize` and `POST /detokenize`, in vLLM's shapes."""

from typing import Any

from fastapi import APIRouter, Request

from service.api.body import read_body
from service.errors import InvalidRequest
from service.ordering import encode_chat
from service.schemas import DetokenizeBody, TokenizeBody
from service.served import ServedModel
from service.state import State

router = APIRouter()


@router.post("/tokenize")
async def tokenize(request: Request) -> dict[str, Any]:
    state: State = request.app.state.noria
    body = await read_body(request, TokenizeBody)
    served = state.reception.require(body.model)
    tokens = await state.reception.off_loop(lambda: encode(body, served))
    return {
        "count": len(tokens),
        "max_model_len": served.info.max_model_len,
        "tokens": tokens,
        "token_strs": [served.tokenizer.name(token) for token in tokens] if body.return_token_strs else None,
    }


@router.post("/detokenize")
async def detokenize(request: Request) -> dict[str, Any]:
    state: State = request.app.state.noria
    body = await read_body(request, DetokenizeBody)
    served = state.reception.require(body.model)
    vocab_size = served.info.vocab_size
    for token in body.tokens:
        if not 0 <= token < vocab_size:
            message = f"tokens has token id {token}, the vocabulary is 0..{vocab_size - 1}"
            raise InvalidRequest(message, param="tokens")
    return {"prompt": await state.reception.off_loop(lambda: served.tokenizer.decode(body.tokens))}


def encode(body: TokenizeBody, served: ServedModel) -> list[int]:
    if body.messages is None:
        add_bos = body.add_special_tokens is not False
        return served.tokenizer.encode(body.prompt or "", add_bos=add_bos, parse_control=True)
    messages = [message.plain() for message in body.messages]
    return encode_chat(served, messages, add_generation_prompt=body.add_generation_prompt is not False)
