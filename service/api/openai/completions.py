"""`POST /v1/completions`."""

from fastapi import Request
from starlette.responses import Response

from service.access.policy import Policy
from service.api.answering import answer
from service.api.openai.answers import COMPLETION, Completion
from service.api.openai.completion_order import order_completion
from service.api.openai.schema import CompletionBody
from service.api.openai.shape import CompletionShape
from service.api.routes import post
from service.schema.generation import StreamOptions


@post(
    "/v1/completions",
    body=CompletionBody,
    request={"prompt": "The capital of France is", "max_tokens": 8},
    answer=Completion,
    answers=(COMPLETION,),
    policy=Policy(operation="text_completion"),
)
async def completions(request: Request, body: CompletionBody) -> Response:
    """Continue one or more prompts

    `logprobs` k reports the k likeliest tokens beside each token; 0 reports only the token's own.
    """
    return await answer(
        request,
        body,
        lambda served: order_completion(body, served),
        lambda served, name: CompletionShape(
            name,
            served.tokenizer,
            served.fingerprint,
            body.n_logprobs is not None,
            body.stream_options or StreamOptions(),
            bool(body.return_token_ids),
        ),
    )
