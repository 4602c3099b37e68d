"""The orders of chat requests, and of requests whose timeout came before the engine."""

from collections.abc import Sequence
from dataclasses import replace

from model.sampling_params import SamplingParams
from service.api.chat_request import ChatRequest
from service.api.encoding import check_prompt, encode_chat, n_begin_tokens, sampling, truncated
from service.api.images import Pending, with_images
from service.api.reasoning import check_reasoning, reasoning_of, with_thought
from service.errors.errors import InvalidRequest
from service.generation.order import Order, Prompt
from service.generation.served import ServedModel
from service.images.decoder import DecodedImage
from service.schema.generation import GenerationBody
from service.structured.call_grammar import call_constraint
from service.structured.call_style import style_of
from service.structured.constraint import Constraint


def ordered_chat(request: ChatRequest, served: ServedModel) -> Order | Pending[Order]:
    """The order of a request, whose images may have to be decoded first. As `order_chat`."""
    return with_images(request, served, lambda images: order_chat(request, served, images))


def order_chat(request: ChatRequest, served: ServedModel, images: Sequence[DecodedImage] = ()) -> Order:
    """The order. Raises ParameterError or InvalidRequest. It tokenizes: not for the event loop."""
    check_reasoning(request, served)
    grammar, fields = enforceable(_constraint(request, served), served)
    prompt, params = _prompt(request, served, grammar, images)
    check_prompt(prompt.tokens, params.max_tokens, served, request.messages_field, request.max_tokens_field)
    reasoning = reasoning_of(request, served, prompt.tokens)
    whole = with_thought(reasoning, request, served, grammar)
    params = params if whole == grammar else replace(params, grammar=whole)
    return Order(
        (prompt,),
        params,
        request.n,
        # a client's grammar decides how the answer starts
        starts_message=not request.template.continue_final_message and request.constraint is None,
        options=request.options,
        grammar_fields=fields or (request.reasoning.field,),
        visible_control=_visible(request, served),
        reasoning=reasoning,
    )


def _visible(request: ChatRequest, served: ServedModel) -> frozenset[str]:
    """The control tokens that are part of the text: the marks of calls, and of a thought that is not apart."""
    calls = style_of(served).control(served.tokenizer) if request.calls.functions else frozenset()
    marks = served.reasoning
    if marks is None or request.reasoning.apart:
        return calls
    return calls | {name for name in (marks.opening, marks.closing) if name in served.tokenizer.control}


def order_late(body: GenerationBody) -> Order:
    """The order of a request whose timeout came before tokenizing ended: its choices are empty."""
    return Order((Prompt([]),) * body.n_prompts, SamplingParams(max_tokens=0), body.n_choices)


def enforceable(constraint: Constraint | None, served: ServedModel) -> tuple[str | None, tuple[str, ...]]:
    """The grammar of a constraint as text, and its fields. Raises InvalidRequest for a model without end tokens."""
    if constraint is None:
        return None, ()
    if not served.defaults.eos_token_ids:
        first = constraint.fields[0]
        raise InvalidRequest(f"{first} needs a model with an end token, and this one has none", param=first)
    return constraint.serialized(), constraint.fields


def _constraint(request: ChatRequest, served: ServedModel) -> Constraint | None:
    """The constraint of the answer: calls, if functions may be called, or the client's structured output."""
    if not request.calls.functions:
        return request.constraint
    return call_constraint(request.calls, style_of(served), served.tokenizer, request.constraint)


def _prompt(
    request: ChatRequest, served: ServedModel, grammar: str | None, images: Sequence[DecodedImage]
) -> tuple[Prompt, SamplingParams]:
    """The prompt and the parameters. Without `max_tokens` the answer may fill the context."""
    limit = request.max_tokens
    params = None if limit is None else _sampling(request, served, limit, grammar)  # refused before tokenizing
    whole = encode_chat(request, served, images)
    n_begin = n_begin_tokens(whole.tokens, served.tokenizer)
    tokens = truncated(whole.tokens, n_begin, request.options.truncate_prompt_tokens, limit or 1, served)
    part = whole.shortened(tokens, n_begin)
    prompt = Prompt(tokens, images=part.spans, pixels=part.pixels(images))
    return prompt, params or _sampling(request, served, max(1, served.info.max_model_len - len(tokens)), grammar)


def _sampling(request: ChatRequest, served: ServedModel, max_tokens: int, grammar: str | None) -> SamplingParams:
    return sampling(
        request.sampling,
        served,
        max_tokens=max_tokens,
        logprobs=request.logprobs,
        prompt_logprobs=request.options.prompt_logprobs,
        grammar=grammar,
        return_progress=request.options.return_progress,
    )
