"""The body of `POST /v1/embeddings`, and the engine's request that it becomes."""

from typing import Literal

from pydantic import Field

from model.sampling_params import SamplingParams
from service.api.prompt import check_prompt, encode_text
from service.engine.messages import Submit
from service.errors.errors import InvalidRequest
from service.generation.request import ModelRequest, Prompt
from service.generation.served import ServedModel
from service.schema.fields import MODEL, Body, only, optional
from service.schema.generation import MAX_USER
from service.schema.prompts import MAX_PROMPTS, Prompts, check_prompts, listed


class EmbeddingsBody(Body):
    """`POST /v1/embeddings`."""

    harmless = only(
        add_special_tokens=(True,),
        embed_dtype=("float32",),
        endianness=("little",),
        normalize=(True,),
        priority=(0,),
        truncate_prompt_tokens=(),
    )
    model: str | None = optional(MODEL)
    input: Prompts = Field(description=f"A string or token ids, or a list of up to {MAX_PROMPTS} of either.")
    encoding_format: Literal["float", "base64"] | None = optional(
        "`float`: a list of numbers; `base64`: the bytes of little-endian float32 numbers. Default: float."
    )
    dimensions: int | None = optional(
        "The number of values in an embedding. It must equal the model's own.", ge=1, le=2**31 - 1
    )
    pooling: Literal["mean", "last"] | None = optional(
        "The mean of the hidden states of all tokens, or the last token's hidden state. Default: mean."
    )
    user: str | None = optional("The end user. The log has a hash of it.", max_length=MAX_USER)

    @property
    def end_user(self) -> str | None:
        return self.user

    def check(self) -> None:
        check_prompts("input", listed(self.input))


def embeddings_request(body: EmbeddingsBody, served: ServedModel) -> ModelRequest:
    """Tokenizes: not for the event loop. Raises ParameterError or InvalidRequest."""
    if body.dimensions not in (None, served.info.dim):
        message = f"dimensions must be {served.info.dim}, the width of this model, got {body.dimensions}"
        raise InvalidRequest(message, param="dimensions")
    params = SamplingParams(max_tokens=0, embed=body.pooling or "mean")
    return ModelRequest(tuple(_prompt(item, params, served) for item in listed(body.input)))


def _prompt(item: str | list[int], params: SamplingParams, served: ServedModel) -> Prompt:
    tokens = encode_text(served, item, param="input") if isinstance(item, str) else item
    check_prompt(tokens, 0, served, "input")
    return Prompt(Submit(0, tokens, params, adapter=served.adapter_number))
