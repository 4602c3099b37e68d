"""From a request's body to an Order for the engine: token ids, sampling parameters, every check that can be made."""

import json
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from model.chat.formats import ChatFormat
from model.sampling_params import SamplingParams, check_ids
from model.tokenizers.base import Tokenizer
from model.tokenizers.pieces import encode_inner
from service.generation.choice import Order, Prompt
from service.generation.served import ServedModel
from service.generation.text import TextStream
from service.http.errors import InvalidRequest, shown
from service.schema.generation import ChatBody, CompletionBody, GenerationBody
from service.schema.tools import Function
from service.structured.call_grammar import call_grammar, explained
from service.structured.call_style import style_of
from service.structured.forms import Constraint, checked_size, constraint

COMPLETION_TOKENS = 16


def order_completion(body: CompletionBody, served: ServedModel) -> Order:
    """Tokenizes: not for the event loop. Raises ParameterError or InvalidRequest."""
    max_tokens = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    asked = _constraint(body, served)
    ranked = body.n_drawn > body.n_choices
    params = sampling(
        body,
        served,
        max_tokens=max_tokens,
        logprobs=0 if ranked and body.logprobs is None else body.logprobs,
        prompt_logprobs=_most(body.prompt_logprobs, body.logprobs if body.echo else None),
        grammar=asked.grammar,
    )
    prompts = tuple(_prompt(prompt, body, max_tokens, served) for prompt in body.prompts)
    wishes = {**_wishes(body), "grammar_field": asked.field}
    return Order(prompts, params, body.n_drawn, kept=body.n_choices, scores_end=True, **wishes)


def order_chat(body: ChatBody, served: ServedModel) -> Order:
    """Tokenizes: not for the event loop. Raises ParameterError or InvalidRequest."""
    form = _constraint(body, served)
    asked = _chat_constraint(body, served, form)
    if body.token_limit is not None:
        params = _chat_sampling(body, served, body.token_limit, asked)  # refused, if so, before the work of tokenizing
    messages = [message.plain() for message in body.messages]
    whole = encode_chat(served, messages, body.functions, **body.template_options)
    tokens = _truncated(whole, _n_begin(whole, served.tokenizer), body, body.token_limit or 1, served)
    if body.token_limit is None:
        params = _chat_sampling(body, served, max(1, served.info.max_model_len - len(tokens)), asked)
    check_prompt(tokens, params.max_tokens, served)
    shown = style_of(served).control(served.tokenizer) if body.functions else frozenset()
    wishes = {**_wishes(body), "grammar_field": asked.field, "shown_control": shown}
    starts = not body.continue_final_message and form.grammar is None  # a form says itself how an answer starts
    return Order((Prompt(tokens),), params, body.n_choices, starts_message=starts, **wishes)


def order_late(body: GenerationBody) -> Order:
    """Of a request whose time was up before it was an order: choices that have nothing but their end."""
    return Order((Prompt([]),) * body.n_prompts, SamplingParams(max_tokens=0), body.n_choices)


def renamed(order: Order, field: str) -> Order:
    """The order, for a request that calls its `response_format` by another name."""
    return replace(order, grammar_field=field) if order.grammar_field == "response_format" else order


def _wishes(body: GenerationBody) -> dict[str, Any]:
    """What an order takes from a body as it is."""
    return {
        "return_token_ids": bool(body.return_token_ids),
        "prompt_logprobs": body.prompt_logprobs,
        "priority": body.priority or 0,
        "cache_salt": body.cache_salt or "",
        "timeout": body.timeout,
    }


def _most(*counts: int | None) -> int | None:
    return max((count for count in counts if count is not None), default=None)


def encode_text(served: ServedModel, text: str, *, add_bos: bool = True, param: str = "prompt") -> list[int]:
    """Raises InvalidRequest, before the work of tokenizing, for a text that cannot fit."""
    check_size([text], param, served)
    return served.tokenizer.encode(text, add_bos=add_bos, parse_control=True)


def encode_chat(
    served: ServedModel, messages: Sequence[dict[str, Any]], functions: Sequence[Function] = (), **options: Any
) -> list[int]:
    """`options` as `ChatFormat.encode` takes them."""
    chat, messages, tools = conversation(served, messages, functions)
    return chat.encode(messages, tools=tools, **options)


def conversation(
    served: ServedModel, messages: Sequence[dict[str, Any]], functions: Sequence[Function] = ()
) -> tuple[ChatFormat, Sequence[dict[str, Any]], list[dict[str, Any]] | None]:
    """The model's chat format, with messages and tools as it takes them, for what may fit the context.

    Raises InvalidRequest where there is no format, or for what does not fit.
    """
    if served.chat is None:
        raise InvalidRequest(
            "this model has no chat template: start the server with --chat-template, or use /v1/completions",
            param="messages",
            code="no_chat_template",
        )
    tools = [function.described() for function in functions]
    check_size([message["content"].strip() for message in messages], "messages", served)  # templates may trim
    check_size([json.dumps([tools, *(message.get("tool_calls") for message in messages)])], "tools", served)
    if served.chat.call_style is None:
        return served.chat, explained(messages, functions), None
    return served.chat, style_of(served).with_ids(messages), tools or None


def _chat_constraint(body: ChatBody, served: ServedModel, form: Constraint) -> Constraint:
    """The form of the answer and the calls in its place; a form alone if nothing may be called."""
    if not body.functions:
        return form
    grammar = call_grammar(body, style_of(served), served.tokenizer, form.grammar)
    return _can_end(Constraint("tools", checked_size(grammar, "tools")), served)


def _constraint(body: GenerationBody, served: ServedModel) -> Constraint:
    return _can_end(constraint(body), served)


def _can_end(asked: Constraint, served: ServedModel) -> Constraint:
    if asked.grammar is not None and not served.defaults.eos_token_ids:
        raise InvalidRequest(f"{asked.field} needs a model with an end token, and this one has none", param=asked.field)
    return asked


def _chat_sampling(body: ChatBody, served: ServedModel, max_tokens: int, asked: Constraint) -> SamplingParams:
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return sampling(
        body,
        served,
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=body.prompt_logprobs,
        grammar=asked.grammar,
    )


def _prompt(prompt: str | list[int], body: CompletionBody, max_tokens: int, served: ServedModel) -> Prompt:
    whole = _encoded(prompt, body.suffix, served) if isinstance(prompt, str) else prompt
    n_begin = _n_begin(whole, served.tokenizer) if isinstance(prompt, str) else 0
    tokens = _truncated(whole, n_begin, body, max_tokens, served)
    check_prompt(tokens, max_tokens, served)
    if not body.echo:
        return Prompt(tokens)
    if isinstance(prompt, str) and len(tokens) == len(whole):
        text = prompt
    else:
        text = served.tokenizer.decode(tokens[n_begin:], keep_control=True)
    return Prompt(tokens, text, () if body.logprobs is None else _starts(tokens, n_begin, text, served.tokenizer))


def _encoded(prompt: str, suffix: str | None, served: ServedModel) -> list[int]:
    """Ids of a prompt; with a suffix as mistral-common writes a gap to fill, the suffix first."""
    if not suffix:
        return encode_text(served, prompt)
    check_size([prompt, suffix], "suffix", served)
    tokenizer = served.tokenizer
    if not {"[SUFFIX]", "[PREFIX]"} <= tokenizer.control.keys():
        message = f"suffix needs a model with the tokens [SUFFIX] and [PREFIX], this one has none, got {shown(suffix)}"
        raise InvalidRequest(message, param="suffix")
    return [
        *tokenizer.encode("", add_bos=True, parse_control=True),
        tokenizer.control["[SUFFIX]"],
        *encode_inner(tokenizer, suffix),
        tokenizer.control["[PREFIX]"],
        *tokenizer.encode(prompt, add_bos=False, parse_control=False),
    ]


def _n_begin(tokens: list[int], tokenizer: Tokenizer) -> int:
    """How many of the tokens the tokenizer puts before any text."""
    begin = tokenizer.encode("", add_bos=True, parse_control=True)
    return len(begin) if tokens[: len(begin)] == begin else 0


def _starts(tokens: list[int], n_begin: int, text: str, tokenizer: Tokenizer) -> list[int]:
    """Where in `text` each token starts; the first `n_begin` are not in it."""
    stream = TextStream(tokenizer, strip_leading_space=tokenizer.strips_leading_space, keep_control=True)
    for token in tokens[n_begin:]:
        stream.push(token)
    return [0] * n_begin + [min(start, len(text)) for start in stream.take(final=True).starts]


def _truncated(
    tokens: list[int], n_begin: int, body: GenerationBody, max_tokens: int, served: ServedModel
) -> list[int]:
    """The last `truncate_prompt_tokens` tokens, or as many as `max_tokens` leave room for; the begin token stays."""
    most, limit = body.truncate_prompt_tokens, served.info.max_model_len
    if most is None:
        return tokens
    if most > limit:
        message = f"truncate_prompt_tokens must be at most the context of {limit} tokens, got {most}"
        raise InvalidRequest(message, param="truncate_prompt_tokens")
    n_last = (most if most > 0 else max(1, limit - max_tokens)) - n_begin
    return tokens if len(tokens) <= n_begin + n_last else tokens[:n_begin] + tokens[len(tokens) - n_last :]


def _bad_words(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Ids of each word where it begins a word, and where it goes on with one."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip(" ")
        opening = bare if tokenizer.strips_leading_space else " " + bare
        found[tuple(tokenizer.encode(opening, add_bos=False, parse_control=False))] = None
        found[tuple(encode_inner(tokenizer, bare))] = None
    return tuple(ids for ids in found if ids)


def sampling(body: GenerationBody, served: ServedModel, **limits: Any) -> SamplingParams:
    """Parameters as the request gives them, then as the model's generation config does, then ours."""
    values = served.defaults.sampling | body.given
    ends = () if values.get("ignore_eos") else served.defaults.eos_token_ids
    stops = dict.fromkeys((*(body.stop_token_ids or ()), *ends))
    params = SamplingParams(
        **{"seed": secrets.randbits(63), **values},
        logit_bias=body.biases,
        allowed_token_ids=tuple(body.allowed_token_ids or ()),
        bad_words=_bad_words(body.bad_words, served.tokenizer) if body.bad_words else (),
        stop=body.stops,
        stop_token_ids=tuple(stops),
        return_progress=bool(body.return_progress),
        **limits,
    )
    params.check_ids(served.info.vocab_size)
    return params


def check_size(texts: Sequence[str], param: str, served: ServedModel) -> None:
    """Raise InvalidRequest for more text than the longest tokens could hold in the whole context."""
    size, limit = sum(len(text.encode()) for text in texts), served.max_prompt_bytes
    if size > limit:
        raise InvalidRequest(
            f"this model's context is {served.info.max_model_len} tokens, which hold at most {limit} bytes of text, "
            f"but {param} has {size}",
            param=param,
            code="context_length_exceeded",
        )


def check_prompt(tokens: list[int], max_tokens: int, served: ServedModel, param: str = "prompt") -> None:
    """Raise for a prompt that is empty, leaves no room for `max_tokens` or has foreign ids."""
    limit = served.info.max_model_len
    if not tokens:
        raise InvalidRequest("the prompt is empty: it must have at least 1 token", param=param)
    if len(tokens) + max_tokens > limit:
        raise InvalidRequest(
            f"this model's context is {limit} tokens, but the request needs {len(tokens) + max_tokens}: "
            f"{len(tokens)} in the prompt and {max_tokens} for the answer (max_tokens)",
            param=param if len(tokens) >= limit else "max_tokens",
            code="context_length_exceeded",
        )
    check_ids(param, tokens, served.info.vocab_size)
