"""The encoding of requests for the engine: token ids and sampling parameters, checked."""

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from model.chat.formats import ChatFormat
from model.chat.reasoning import EFFORT, PARTS, THOUGHT
from model.errors import ParameterError
from model.sampling_params import SamplingParams, check_ids
from model.tokenizers.base import Tokenizer
from model.tokenizers.pieces import encode_inner
from service.api.chat_request import ChatRequest
from service.api.images import Spanned, expanded
from service.api.reasoning import reasoning_variables
from service.errors.errors import InvalidRequest
from service.generation.served import ServedModel
from service.images.decoder import DecodedImage
from service.schema.sampling import SamplingBody
from service.structured.call_style import style_of
from service.structured.tool_prompt import explained


def encode_text(served: ServedModel, text: str, *, add_bos: bool = True, param: str = "prompt") -> list[int]:
    """Token ids of a text. Raises InvalidRequest, before tokenizing, for a text that cannot fit the context."""
    check_size([text], param, served)
    return served.tokenizer.encode(text, add_bos=add_bos, parse_control=True)


def encode_chat(request: ChatRequest, served: ServedModel, images: Sequence[DecodedImage]) -> Spanned:
    """Token ids of a conversation with its images. Raises ParameterError or InvalidRequest."""
    chat, messages, options = conversation(request, served)
    try:
        thoughts = [_thought(message) for message in request.messages]
        if _size([*_contents(request), *thoughts]) > served.max_prompt_bytes:  # before the format left out some of it
            check_size([chat.render(messages, **options)], request.messages_field, served)
        tokens = chat.encode(messages, **options)
    except ParameterError as error:
        fields = {"messages": request.messages_field, EFFORT: _effort_field(request)}
        if error.param not in fields:
            raise
        raise InvalidRequest(str(error), param=fields[error.param]) from error
    return expanded(tokens, images, served, request.messages_field)


def conversation(
    request: ChatRequest, served: ServedModel
) -> tuple[ChatFormat, Sequence[dict[str, Any]], dict[str, Any]]:
    """The model's chat format, with messages and options as it takes them.

    Raises InvalidRequest where there is no format, or for a conversation that cannot fit the context.
    """
    if served.chat is None:
        raise InvalidRequest(
            "this model has no chat template: start the server with --chat-template, or use /v1/completions",
            param=request.messages_field,
            code="no_chat_template",
        )
    messages, functions = request.messages, request.calls.functions
    tools = [function.described() for function in functions]
    contents = _contents(request)
    if served.chat.may_strip:  # the prompt has at least this
        contents = [content.strip() for content in contents]
    check_size(contents, request.messages_field, served)
    check_size([json.dumps([tools, *(message.get("tool_calls") for message in messages)])], "tools", served)
    options = request.template._asdict() | {"variables": reasoning_variables(request, served)}
    if served.chat.call_style is None:
        return served.chat, explained(messages, functions), options
    return served.chat, style_of(served).with_ids(messages), options | {"tools": tools or None}


def _effort_field(request: ChatRequest) -> str:
    """The client's name of the field with the effort."""
    return "chat_template_kwargs" if EFFORT in request.template.variables else request.reasoning.field


def _thought(message: Mapping[str, Any]) -> str:
    """The text of all thoughts of a message."""
    parts = message.get(PARTS, ())
    return message.get(THOUGHT, "") + "".join(part.get("thinking", "") for part in parts)


def _contents(request: ChatRequest) -> list[str]:
    return [message["content"] for message in request.messages]


def _bad_words(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Token ids of each bad word, spelled at the beginning of a word and inside a word."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip(" ")
        opening = bare if tokenizer.strips_leading_space else " " + bare
        found[tuple(tokenizer.encode(opening, add_bos=False, parse_control=False))] = None
        found[tuple(encode_inner(tokenizer, bare))] = None
    return tuple(ids for ids in found if ids)


def sampling(body: SamplingBody, served: ServedModel, **limits: Any) -> SamplingParams:
    """The sampling parameters: the request's, else those of the model's generation config, else the server's."""
    values = served.defaults.completed(body.given)
    ends = () if values.get("ignore_eos") else served.defaults.eos_token_ids
    stops = dict.fromkeys((*(body.stop_token_ids or ()), *ends))
    params = SamplingParams(
        **{"seed": secrets.randbits(63), **values},
        logit_bias=body.biases,
        allowed_token_ids=tuple(body.allowed_token_ids or ()),
        bad_words=_bad_words(body.bad_words, served.tokenizer) if body.bad_words else (),
        stop=body.stops,
        stop_token_ids=tuple(stops),
        **limits,
    )
    params.check_ids(served.info.vocab_size)
    return params


def n_begin_tokens(tokens: list[int], tokenizer: Tokenizer) -> int:
    """The number of tokens at the beginning that the tokenizer puts before every text."""
    begin = tokenizer.encode("", add_bos=True, parse_control=True)
    return len(begin) if tokens[: len(begin)] == begin else 0


def truncated(tokens: list[int], n_begin: int, n_last: int | None, max_tokens: int, served: ServedModel) -> list[int]:
    """The begin tokens and the end of the prompt, together `n_last` tokens (-1: as many as fit beside `max_tokens`)."""
    limit = served.info.max_model_len
    if n_last is None:
        return tokens
    if n_last > limit:
        message = f"truncate_prompt_tokens must be at most the context of {limit} tokens, got {n_last}"
        raise InvalidRequest(message, param="truncate_prompt_tokens")
    n_end = (n_last if n_last > 0 else max(1, limit - max_tokens)) - n_begin
    return tokens if len(tokens) <= n_begin + n_end else tokens[:n_begin] + tokens[len(tokens) - n_end :]


def check_size(texts: Sequence[str], param: str, served: ServedModel) -> None:
    """Raise InvalidRequest for text that is too long for the context even if all its tokens are the longest ones."""
    size, limit = _size(texts), served.max_prompt_bytes
    if size > limit:
        raise InvalidRequest(
            f"this model's context is {served.info.max_model_len} tokens, which hold at most {limit} bytes of text, "
            f"but {param} has {size}",
            param=param,
            code="context_length_exceeded",
        )


def _size(texts: Sequence[str]) -> int:
    """In bytes."""
    return sum(len(text.encode()) for text in texts)


def check_prompt(
    tokens: list[int], max_tokens: int, served: ServedModel, param: str = "prompt", limit_param: str = "max_tokens"
) -> None:
    """Raise for a prompt that is empty, leaves no space for `max_tokens` or has ids outside the vocabulary.

    `param` and `limit_param` are the client's names of the prompt and of `max_tokens`.
    """
    limit = served.info.max_model_len
    if not tokens:
        raise InvalidRequest(f"{param} is empty: the prompt must have at least 1 token", param=param)
    if len(tokens) + max_tokens > limit:
        raise InvalidRequest(
            f"this model's context is {limit} tokens, but the request needs {len(tokens) + max_tokens}: "
            f"{len(tokens)} in the prompt and {max_tokens} for the answer ({limit_param})",
            param=param if len(tokens) >= limit else limit_param,
            code="context_length_exceeded",
        )
    check_ids(param, tokens, served.info.vocab_size)
