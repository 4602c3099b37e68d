"""What a request may ask of the sampler: the fields of `SamplingParams`, as clients name them."""

import re
from typing import Annotated, Any

from pydantic import Field

from model.sampling_params import MAX_ALLOWED_TOKENS, MAX_BAD_WORDS, MAX_STOP_CHARS
from service.http.errors import InvalidRequest, shown
from service.schema.fields import Body, Items, TokenIds, expect, optional, ranged

TOKEN_ID = re.compile(r"-?[0-9]{1,12}")

BadWord = Annotated[str, Field(max_length=MAX_STOP_CHARS, pattern="[^ ]")]
Stops = Annotated[str | Items[str], expect("a string or a list of strings")]


class SamplingBody(Body):
    """None: the model's default, or ours."""

    min_tokens: int | None = ranged("min_tokens", "No end before as many; at most `max_tokens`. Default: 0.")
    temperature: float | None = ranged("temperature", "0 is greedy. Default: `generation_config.json`'s, or 1.")
    top_p: float | None = ranged(
        "top_p", "Keeps the likeliest tokens that reach this share; 0: the likeliest. Default: 1."
    )
    top_k: int | None = ranged("top_k", "Keeps the k likeliest tokens; 0 and -1 keep all. Default: 0.")
    min_p: float | None = ranged("min_p", "Keeps tokens this much as likely as the likeliest. Default: 0.")
    presence_penalty: float | None = ranged("presence_penalty", "On tokens of the output. Default: 0.")
    frequency_penalty: float | None = ranged("frequency_penalty", "On tokens of the output, each time. Default: 0.")
    repetition_penalty: float | None = ranged("repetition_penalty", "On tokens of prompt and output. Default: 1.")
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
    seed: int | None = ranged("seed", "With it the same request draws the same tokens. Default: random.")
    stop: Stops | None = optional("A string, or up to 16, of 1 to 512 characters: the text ends before it.")
    include_stop_str_in_output: bool | None = optional("The text ends after the stop string, or the stop token.")
    stop_token_ids: TokenIds | None = optional("At most 1024, the model's end tokens among them.")
    ignore_eos: bool | None = optional("The model's own end tokens do not end the output.")
    prompt_lookup_num_tokens: int | None = ranged(
        "prompt_lookup_num_tokens", "Tokens that a step may propose from earlier text. Default: 0."
    )

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def biases(self) -> tuple[tuple[int, float], ...]:
        biases = self.logit_bias or {}
        for token, value in biases.items():
            if type(value) not in (int, float):
                raise InvalidRequest(f"logit_bias.{token} should be a number, got {shown(value)}", param="logit_bias")
            if not TOKEN_ID.fullmatch(token):
                raise InvalidRequest(f"logit_bias has key {shown(token)}, expected token ids", param="logit_bias")
        return tuple((int(token), value) for token, value in biases.items())
