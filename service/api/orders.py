"""Orders for the engine: of a chat request, and of any that came too late."""

from model.sampling_params import SamplingParams
from service.api.chat_request import ChatRequest
from service.api.encoding import check_prompt, encode_chat, n_begin_tokens, sampling, truncated
from service.generation.order import Order, Prompt
from service.generation.served import ServedModel
from service.http.errors import InvalidRequest
from service.schema.generation import GenerationBody
from service.structured.call_grammar import call_constraint
from service.structured.call_style import style_of
from service.structured.constraint import Constraint


def order_chat(request: ChatRequest, served: ServedModel) -> Order:
    """Tokenizes: not for the event loop. Raises ParameterError or InvalidRequest."""
    grammar, fields = enforceable(_constraint(request, served), served)
    if request.max_tokens is not None:
        params = _sampling(
            request, served, request.max_tokens, grammar
        )  # refused, if so, before the work of tokenizing
    whole = encode_chat(request, served)
    n_begin = n_begin_tokens(whole, served.tokenizer)
    tokens = truncated(whole, n_begin, request.options.truncate_prompt_tokens, request.max_tokens or 1, served)
    if request.max_tokens is None:
        params = _sampling(request, served, max(1, served.info.max_model_len - len(tokens)), grammar)
    check_prompt(tokens, params.max_tokens, served, request.messages_field, request.max_tokens_field)
    style = style_of(served)
    return Order(
        (Prompt(tokens),),
        params,
        request.n,
        # a grammar of the client says itself how an answer starts
        starts_message=not request.template.continue_final_message and request.constraint is None,
        options=request.options,
        grammar_fields=fields,
        visible_control=style.control(served.tokenizer) if request.calls.functions else frozenset(),
    )


def order_late(body: GenerationBody) -> Order:
    """Of a request whose time was up before it was an order: choices that have nothing but their end."""
    return Order((Prompt([]),) * body.n_prompts, SamplingParams(max_tokens=0), body.n_choices)


def enforceable(constraint: Constraint | None, served: ServedModel) -> tuple[str | None, tuple[str, ...]]:
    """A constraint's grammar as text, and its fields. Raises InvalidRequest where the model could not end."""
    if constraint is None:
        return None, ()
    if not served.defaults.eos_token_ids:
        first = constraint.fields[0]
        raise InvalidRequest(f"{first} needs a model with an end token, and this one has none", param=first)
    return constraint.serialized(), constraint.fields


def _constraint(request: ChatRequest, served: ServedModel) -> Constraint | None:
    """What the answer must be: a call, perhaps, or what the client wants in its place."""
    if not request.calls.functions:
        return request.constraint
    return call_constraint(request.calls, style_of(served), served.tokenizer, request.constraint)


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
