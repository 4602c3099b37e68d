"""From a request's body to an Order for the engine: token ids, sampling parameters, every check that can be made."""

import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from model.sampling_params import SamplingParams
from service.choice import Order, Prompt
from service.errors import InvalidRequest
from service.schemas import ChatBody, CompletionBody, GenerationBody
from service.served import ServedModel

COMPLETION_TOKENS = 16
SAMPLED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")


def order_completion(body: CompletionBody, served: ServedModel) -> Order:
    """Tokenizes: not for the event loop. Raises ParameterError or InvalidRequest."""
    max_tokens = COMPLETION_TOKENS if body.max_tokens is None else body.max_tokens
    params = sampling(
        body,
        served,
        max_tokens=max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
    )
    prompts = tuple(_prompt(prompt, body, served) for prompt in body.prompts)
    for prompt in prompts:
        check_prompt(prompt.tokens, max_tokens, served)
    return Order(prompts, params, body.n_choices)


def order_chat(body: ChatBody, served: ServedModel) -> Order:
    """Tokenizes: not for the event loop. Raises ParameterError or InvalidRequest."""
    if body.token_limit is not None:
        params = _chat_sampling(body, served, body.token_limit)  # refused, if so, before the work of tokenizing
    tokens = encode_chat(served, [message.plain() for message in body.messages])
    if body.token_limit is None:
        params = _chat_sampling(body, served, max(1, served.info.max_model_len - len(tokens)))
    check_prompt(tokens, params.max_tokens, served)
    return Order((Prompt(tokens),), params, body.n_choices, starts_message=True)


def encode_chat(
    served: ServedModel, messages: Sequence[dict[str, str]], *, add_generation_prompt: bool = True
) -> list[int]:
    if served.chat is None:
        raise InvalidRequest(
            "this model has no chat template: start the server with --chat-template, or use /v1/completions",
            param="messages",
            code="no_chat_template",
        )
    return served.chat.encode(messages, add_generation_prompt=add_generation_prompt)


def _chat_sampling(body: ChatBody, served: ServedModel, max_tokens: int) -> SamplingParams:
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return sampling(body, served, max_tokens=max_tokens, logprobs=logprobs)


def _prompt(prompt: str | list[int], body: CompletionBody, served: ServedModel) -> Prompt:
    tokenizer = served.tokenizer
    if isinstance(prompt, str):
        tokens = tokenizer.encode(prompt, add_bos=True, parse_control=True)
        return Prompt(tokens, prompt if body.echo else None)
    return Prompt(prompt, tokenizer.decode(prompt) if body.echo else None)


def sampling(body: GenerationBody, served: ServedModel, **limits: Any) -> SamplingParams:
    """Parameters as the request gives them, then as the model's generation config does, then ours."""
    asked = {name: getattr(body, name) for name in SAMPLED}
    values = served.defaults.sampling | {name: value for name, value in asked.items() if value is not None}
    ends = () if body.ignore_eos else served.defaults.eos_token_ids
    params = SamplingParams(
        **values,
        logit_bias=body.biases,
        seed=secrets.randbits(63) if body.seed is None else body.seed,
        min_tokens=body.min_tokens or 0,
        stop=body.stops,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        **limits,
    )
    params.check_ids(served.info.vocab_size)
    return replace(params, stop_token_ids=tuple(dict.fromkeys((*params.stop_token_ids, *ends))))


def check_prompt(tokens: list[int], max_tokens: int, served: ServedModel) -> None:
    """Raise InvalidRequest for a prompt that is empty, has foreign ids or leaves no room for `max_tokens`."""
    limit, vocab_size = served.info.max_model_len, served.info.vocab_size
    if not tokens:
        raise InvalidRequest("the prompt is empty: it must have at least 1 token", param="prompt")
    if len(tokens) + max_tokens > limit:
        raise InvalidRequest(
            f"this model's context is {limit} tokens, but the request needs {len(tokens) + max_tokens}: "
            f"{len(tokens)} in the prompt and {max_tokens} for the answer (max_tokens)",
            param="prompt" if len(tokens) >= limit else "max_tokens",
            code="context_length_exceeded",
        )
    if not 0 <= min(tokens) <= max(tokens) < vocab_size:
        bad = next(token for token in tokens if not 0 <= token < vocab_size)
        raise InvalidRequest(f"prompt has token id {bad}, the vocabulary is 0..{vocab_size - 1}", param="prompt")
