"""`POST /v1/fim/completions`, Mistral's endpoint for code: what completions compute, in the form of a chat."""

from pydantic import Field

from service.access.record import Policy
from service.api.answering import answered
from service.api.call import Answer, Call
from service.api.openai.answer_types import ChatCompletion
from service.api.openai.completions import GapBody
from service.api.openai.shape import ChatShape
from service.api.routes import post
from service.api.text import Text, text_request
from service.schema.fields import limits_of, ranged, synonym
from service.schema.generation import CHAT_TOKENS
from service.structured.constraint import constraint


class FimBody(GapBody):
    """The request body of `POST /v1/fim/completions`."""

    prompt: str = Field(description="The text before the answer.")
    max_tokens: int | None = ranged("max_tokens", CHAT_TOKENS, least=1)
    n_predict: int | None = synonym("max_tokens", "llama.cpp's", **limits_of("max_tokens", least=1))

    def text(self) -> Text:
        """Return the text to continue, as `CompletionBody.text` does."""
        options, max_tokens = self.options, self.agreed("max_tokens")
        return Text([self.prompt], self.suffix, options, max_tokens, constraint=constraint(self), n_best=options.n)


@post(
    "/v1/fim/completions",
    body=FimBody,
    request={"prompt": "def one():", "max_tokens": 8},
    answer=ChatCompletion,
    policy=Policy(operation="text_completion", resumes=True),
)
async def fim_completions(call: Call, body: FimBody) -> Answer:
    """Fill the gap between a prompt and a suffix

    Without a suffix the answer continues the prompt. A stream ends with `usage`, as Mistral's does.
    """
    shape = ChatShape(body, mistral=True)
    served = await call.admitted(body, shape)
    return await answered(call, call.on_lane(lambda: text_request(body.text(), served)), shape)
