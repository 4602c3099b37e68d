"""`POST /v1/responses`."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from service.api.answering import answer
from service.api.body import read_body
from service.api.orders import order_chat
from service.api.responses.schema import ResponsesBody
from service.api.responses.shape import ResponseShape, repeated
from service.structured.call_reader import reader_of

router = APIRouter()


@router.post("/v1/responses")
async def responses(request: Request) -> Response:
    body = await read_body(request, ResponsesBody)
    return await answer(
        request,
        body,
        lambda served: order_chat(body.chat_request(), served),
        lambda served, name: ResponseShape(name, repeated(body, served), reader_of(served, body.may_call)),
    )
