"""What a client may ask of `POST /v1/embeddings`, and its order to the engine."""

from typing import Literal

from model.sampling_params import SamplingParams
from service.choice import Order, Prompt
from service.errors import InvalidRequest
from service.harmless_fields import HARMLESS_EMBEDDINGS
from service.ordering import check_prompt, encode_text
from service.schemas import Body, Integer, Prompts, check_prompts, listed
from service.served import ServedModel


class EmbeddingsBody(Body):
    """`pooling` "mean" averages the hidden states of all tokens, "last" takes the last one's."""

    harmless = HARMLESS_EMBEDDINGS
    model: str | None = None
    input: Prompts
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Integer | None = None
    pooling: Literal["mean", "last"] | None = None

    def check(self) -> None:
        check_prompts("input", listed(self.input))


def order_embeddings(body: EmbeddingsBody, served: ServedModel) -> Order:
    """Tokenizes: not for the event loop. Raises ParameterError or InvalidRequest."""
    if body.dimensions not in (None, served.info.dim):
        message = f"dimensions must be {served.info.dim}, the width of this model, got {body.dimensions}"
        raise InvalidRequest(message, param="dimensions")
    params = SamplingParams(max_tokens=0, embed=body.pooling or "mean")
    return Order(tuple(_prompt(item, served) for item in listed(body.input)), params, 1)


def _prompt(item: str | list[int], served: ServedModel) -> Prompt:
    tokens = encode_text(served, item, param="input") if isinstance(item, str) else item
    check_prompt(tokens, 0, served, "input")
    return Prompt(tokens)
