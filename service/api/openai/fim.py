"""`POST /v1/fim/completions`, Mistral's endpoint for code: what completions compute, in the form of a chat."""

from fastapi import Request
from pydantic import Field
from starlette.responses import Response

from service.access.record import Policy
from service.api.openai.answers import ChatCompletion
from service.api.openai.completions import GapBody, completion_request
from service.api.openai.shape import ChatShape
from service.api.prompt import on_thread
from service.api.resuming import answer_resumable
from service.api.routes import post
from service.schema.fields import limits_of, ranged, synonym
from service.schema.generation import CHAT_TOKENS


class FimBody(GapBody):
    """The request body of `POST /v1/fim/completions`."""

    prompt: str = Field(description="The text before the answer.")
    max_tokens: int | None = ranged("max_tokens", CHAT_TOKENS, least=1)
    n_predict: int | None = synonym("max_tokens", "llama.cpp's", **limits_of("max_tokens", least=1))

    @property
    def prompts(self) -> list[str]:
        return [self.prompt]


@post(
    "/v1/fim/completions",
    body=FimBody,
    request={"prompt": "def one():", "max_tokens": 8},
    answer=ChatCompletion,
    policy=Policy(operation="text_completion", resumes=True),
)
async def fim_completions(request: Request, body: FimBody) -> Response:
    """Fill the gap between a prompt and a suffix

    Without a suffix the answer continues the prompt. A stream ends with `usage`, as Mistral's does.
    """
    return await answer_resumable(
        request,
        body,
        on_thread(lambda served: completion_request(body, served)),
        lambda served, name: ChatShape(
            name,
            served.tokenizer,
            served.fingerprint,
            False,
            body.streaming,
            bool(body.return_token_ids),
            body.metadata,
            mistral=True,
            scores_prompt=body.prompt_logprobs is True,
            n=body.n_choices,
        ),
    )
