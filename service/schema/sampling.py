"""What a request may ask of the sampler: the fields of `SamplingParams`, as clients name them."""

import re
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, create_model

from model.sampling_params import MAX_ALLOWED_TOKENS, MAX_BAD_WORDS, MAX_STOP_CHARS, PARAMETERS
from service.http.errors import InvalidRequest, quoted
from service.schema.fields import Body, Items, TokenIds, expect, optional, ranged

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
    """The parameters that clients name and type as `SamplingParams` does, and those that they write otherwise.

    None: the model's default, or ours.
    """

    logit_bias: dict[str, Any] | None = optional(  # `biases` checks it: a typed dict would list all its errors
        "Token id to what is added to its logit, -100 to 100; at most 1024."
    )
    allowed_token_ids: TokenIds | None = optional(
        "The only tokens that may be drawn.", min_length=1, max_length=MAX_ALLOWED_TOKENS
    )
    bad_words: Items[BadWord] | None = optional(
        "Words that are not said, at the beginning of a word or within: the last token of one is never drawn after its "
        "others.",
        max_length=MAX_BAD_WORDS,
    )
    stop: Stops | None = optional("A string, or up to 16, of 1 to 512 characters: the text ends before it.")
    stop_token_ids: TokenIds | None = optional("At most 1024, the model's end tokens among them.")

    @property
    def given(self) -> dict[str, Any]:
        """Values of the declared parameters that the request gives."""
        return {name: value for name in DECLARED if (value := getattr(self, name)) is not None}

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        biases = self.logit_bias or {}
        for token, value in biases.items():
            if type(value) not in (int, float):
                raise InvalidRequest(f"logit_bias.{token} should be a number, got {quoted(value)}", param="logit_bias")
            if not TOKEN_ID.fullmatch(token):
                raise InvalidRequest(f"logit_bias has key {quoted(token)}, expected token ids", param="logit_bias")
        return tuple((int(token), value) for token, value in biases.items())
