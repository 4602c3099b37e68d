"""Requests to continue prompts, or to fill the gap between a prompt and a suffix, for all APIs that have them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from model.errors import quoted
from model.tokenizers.base import Tokenizer
from model.tokenizers.pieces import encode_inner
from service.api.prompt import check_prompt, check_size, encode_text, enforceable, n_begin_tokens, truncated
from service.errors.errors import InvalidRequest
from service.generation.request import Echo, ModelRequest, sampling, submit_of
from service.generation.served import ServedModel
from service.generation.text import TextStream
from service.schema.options import Names, Options
from service.structured.constraint import Constraint


@dataclass(frozen=True, slots=True)
class Text:
    """Prompts to continue, each as text or as token ids. With a `suffix` the answer fills the gap before it.

    `max_tokens` None: as many as the prompt leaves of the context. `logprobs` is the number of alternatives for each
    token (None: no logprobs). `echoes`: the answer begins with the prompt. `n_best` of the choices are returned (None:
    all).
    """

    prompts: Sequence[str | list[int]]
    suffix: str | None = None
    options: Options = Options()  # noqa: RUF009 - frozen
    max_tokens: int | None = None
    logprobs: int | None = None
    constraint: Constraint | None = None
    echoes: bool = False
    n_best: int | None = None
    names: Names = Names("prompt")  # noqa: RUF009 - frozen


def text_request(text: Text, served: ServedModel) -> ModelRequest:
    """Return the engine's request. Raises ParameterError or InvalidRequest. It tokenizes: not for the event loop."""
    options, max_tokens = text.options, text.max_tokens
    grammar, fields = enforceable(text.constraint, served)
    encoded = [_encoded(prompt, text, 1 if max_tokens is None else max_tokens, served) for prompt in text.prompts]
    left = served.info.max_model_len - max(len(item.tokens) for item in encoded)
    ranked = text.n_best is not None and options.n > text.n_best
    scored = (options.prompt_logprobs, text.logprobs if text.echoes else None)
    params = sampling(
        options,
        served,
        max_tokens=left if max_tokens is None else max_tokens,
        logprobs=0 if ranked and text.logprobs is None else text.logprobs,
        prompt_logprobs=max((count for count in scored if count is not None), default=None),
        grammar=grammar,
    )
    return ModelRequest(
        tuple(submit_of(item.tokens, params, options, served) for item in encoded),
        tuple(_echo(item, text, served) for item in encoded) if text.echoes else (),
        n_best=text.n_best,
        timeout=options.timeout,
        return_token_ids=options.return_token_ids,
        scores_end=True,
        prompt_logprobs=options.prompt_logprobs,
        stop_token_ids=options.stop_token_ids,
        grammar_fields=fields,
    )


class Encoded(NamedTuple):
    """A prompt as tokens. The first `n_begin` are not in the text; `text` is None for one that was cut or had none."""

    tokens: list[int]
    n_begin: int
    text: str | None


def _encoded(prompt: str | list[int], text: Text, max_tokens: int, served: ServedModel) -> Encoded:
    """Encode a prompt, and cut it if the request says so, with a place for `max_tokens` tokens after it."""
    whole = _spelled(prompt, text.suffix, served) if isinstance(prompt, str) else prompt
    n_begin = n_begin_tokens(whole, served.tokenizer) if isinstance(prompt, str) else 0
    tokens = truncated(whole, n_begin, text.options.truncate_prompt_tokens, max_tokens, served)
    check_prompt(tokens, max_tokens, served, text.names)
    return Encoded(tokens, n_begin, prompt if isinstance(prompt, str) and len(tokens) == len(whole) else None)


def _echo(encoded: Encoded, text: Text, served: ServedModel) -> Echo:
    """Return the text of a prompt, with the places of its tokens if they have logprobs."""
    tokens, n_begin, own = encoded
    if own is None:
        own = served.tokenizer.decode(tokens[n_begin:], keep_control=True)
    return Echo(own, () if text.logprobs is None else _starts(tokens, n_begin, own, served.tokenizer))


def fills_gaps(tokenizer: Tokenizer) -> bool:
    """Return whether a tokenizer has the tokens that stand before the two sides of a gap."""
    return {"[SUFFIX]", "[PREFIX]"} <= tokenizer.control.keys()


def _spelled(prompt: str, suffix: str | None, served: ServedModel) -> list[int]:
    """Return token ids of a prompt. A suffix comes before it, as in mistral-common's fill-in-the-middle."""
    if not suffix:
        return encode_text(served, prompt)
    check_size([prompt, suffix], "suffix", served)
    tokenizer = served.tokenizer
    if not fills_gaps(tokenizer):
        needs = "suffix needs a model with the tokens [SUFFIX] and [PREFIX]"
        raise InvalidRequest(f"{needs}; this model has none, got {quoted(suffix)}", param="suffix")
    return [
        *tokenizer.encode("", add_bos=True, parse_control=True),
        tokenizer.control["[SUFFIX]"],
        *encode_inner(tokenizer, suffix),
        tokenizer.control["[PREFIX]"],
        *tokenizer.encode(prompt, add_bos=False, parse_control=False),
    ]


def _starts(tokens: list[int], n_begin: int, text: str, tokenizer: Tokenizer) -> list[int]:
    """Return the index in `text` at which each token starts. The first `n_begin` tokens are not in the text: 0."""
    stream = TextStream(tokenizer, strip_leading_space=tokenizer.strips_leading_space, keep_control=True)
    for token in tokens[n_begin:]:
        stream.push(token)
    return [0] * n_begin + [min(start, len(text)) for start in stream.take(final=True).starts]
