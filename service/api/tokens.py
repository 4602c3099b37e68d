"""`POST /tokenize` and `POST /detokenize`, in vLLM's shapes. Both take a place in the queue while they work."""

from collections.abc import Callable
from typing import Any

import orjson
from fastapi import APIRouter, Request
from starlette.responses import Response

from model.sampling_params import check_ids
from service.admission import State
from service.api.body import read_body
from service.errors import InvalidRequest
from service.ordering import encode_chat, encode_text
from service.schemas import DetokenizeBody, TokenizeBody
from service.served import ServedModel

router = APIRouter()


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    body = await read_body(request, TokenizeBody)
    return await _answer(request, body.model, lambda served: tokenized(body, served))


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    body = await read_body(request, DetokenizeBody)
    return await _answer(request, body.model, lambda served: {"prompt": text_of(body.tokens, served)})


async def _answer(request: Request, model: str | None, work: Callable[[ServedModel], dict[str, Any]]) -> Response:
    state: State = request.app.state.noria
    with state.admission.admitted():
        served = state.admission.require(model)
        content = await state.admission.off_loop(lambda: orjson.dumps(work(served)))
    return Response(content, media_type="application/json")


def tokenized(body: TokenizeBody, served: ServedModel) -> dict[str, Any]:
    tokens = encode(body, served)
    return {
        "count": len(tokens),
        "max_model_len": served.info.max_model_len,
        "tokens": tokens,
        "token_strs": [served.tokenizer.name(token) for token in tokens] if body.return_token_strs else None,
    }


def encode(body: TokenizeBody, served: ServedModel) -> list[int]:
    if body.messages is None:
        return encode_text(served, body.prompt or "", add_bos=body.add_special_tokens is not False)
    messages = [message.plain() for message in body.messages]
    return encode_chat(served, messages, **body.template_options)


def text_of(tokens: list[int], served: ServedModel) -> str:
    """Raises InvalidRequest or ParameterError for more ids than the context, or foreign ones."""
    limit = served.info.max_model_len
    if len(tokens) > limit:
        raise InvalidRequest(
            f"tokens takes at most {limit} ids, the model's context, got {len(tokens)}", param="tokens"
        )
    check_ids("tokens", tokens, served.info.vocab_size)
    return served.tokenizer.decode(tokens, keep_control=True)
