"""Request fields for sampling: the fields of `SamplingParams`, with the names that clients use."""

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, create_model

from model.errors import quoted
from model.sampling_params import (
    BIAS_LIMIT,
    MAX_ALLOWED_TOKENS,
    MAX_BAD_WORDS,
    MAX_BIASED_TOKENS,
    MAX_STOP_CHARS,
    MAX_STOP_TOKENS,
    MAX_STOPS,
    PARAMETERS,
)
from service.errors.errors import InvalidRequest
from service.schema.fields import Body, Items, TokenIds, expect, limits_of, optional, ranged, synonym

TOKEN_ID = re.compile(r"-?[0-9]{1,12}")

BadWord = Annotated[str, Field(max_length=MAX_STOP_CHARS, pattern="[^ ]")]
Stops = Annotated[str | Items[str], expect("a string or a list of strings")]


DECLARED = tuple(name for name, row in PARAMETERS.items() if row.description is not None)
if TYPE_CHECKING:
    DeclaredBody = Body
else:
    DeclaredBody = create_model(
        "DeclaredBody", __base__=Body, **{name: (PARAMETERS[name].kind | None, ranged(name)) for name in DECLARED}
    )


class SamplingBody(DeclaredBody):
    """The fields of `PARAMETERS`, and those that clients write in another way than `SamplingParams` has them.

    None: the model's default, or the server's.
    """

    synonyms = MappingProxyType({"repeat_penalty": "repetition_penalty"})
    repeat_penalty: float | None = synonym("repetition_penalty", "llama.cpp's", **limits_of("repetition_penalty"))
    logit_bias: dict[str, Any] | None = optional(  # `biases` checks it: a typed dict would list all its errors
        f"A map from token ids to numbers from {-BIAS_LIMIT:g} to {BIAS_LIMIT:g}, which are added to their logits. "
        f"At most {MAX_BIASED_TOKENS} entries."
    )
    allowed_token_ids: TokenIds | None = optional(
        "The only tokens that may be sampled.", min_length=1, max_length=MAX_ALLOWED_TOKENS
    )
    bad_words: Items[BadWord] | None = optional(
        "Words that the answer must not have, neither as a word nor inside one. The last token of a word is never "
        "sampled after its other tokens.",
        max_length=MAX_BAD_WORDS,
    )
    stop: Stops | None = optional(
        f"A string, or up to {MAX_STOPS} strings, of 1 to {MAX_STOP_CHARS} characters. The text ends before the first "
        "of them that appears."
    )
    stop_token_ids: TokenIds | None = optional(
        f"Tokens that end the answer. At most {MAX_STOP_TOKENS}, including the model's end tokens."
    )

    @property
    def given(self) -> dict[str, Any]:
        """The values that the request gives for the fields of `PARAMETERS`."""
        return {name: value for name in DECLARED if (value := self.agreed(name)) is not None}

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        biases = self.logit_bias or {}
        for token, value in biases.items():
            if not TOKEN_ID.fullmatch(token):
                raise InvalidRequest(f"logit_bias has key {quoted(token)}, expected token ids", param="logit_bias")
            if type(value) not in (int, float):
                raise InvalidRequest(f"logit_bias.{token} must be a number, got {quoted(value)}", param="logit_bias")
        return tuple((int(token), value) for token, value in biases.items())
