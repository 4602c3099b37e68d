"""Makes requests for the engine: messages, tools and images become token ids and sampling parameters, checked."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from model.chat.formats import ChatFormat
from model.chat.media import MEDIA_ROLES, refused_media
from model.chat.reasoning import EFFORT, PARTS, THOUGHT
from model.chat.schema import SCHEMA
from model.errors import ParameterError
from model.media import MediaSpan
from model.sampling_params import check_ids
from model.tokenizers.base import Tokenizer
from service.access.record import MAX_IGNORED
from service.api.call import Call
from service.api.lanes import SMALL_BYTES
from service.api.media import NO_MEDIA, Media, decoded, expanded, source_of, spans_after
from service.api.reasoning import ReasoningOptions, ignored_reasoning, reasoning_of, reasoning_variables, with_thought
from service.errors.errors import ContextExceeded, InvalidRequest
from service.generation.request import ModelRequest, sampling, submit_of
from service.generation.served import ServedModel
from service.media.source import Source
from service.schema.conversation import TemplateOptions
from service.schema.fields import MAX_ITEMS, Json
from service.schema.options import Names, Options
from service.schema.tools import MAX_CALLS, AllowedCalls
from service.structured.call_style import call_constraint, explained, style_of
from service.structured.constraint import Constraint

T = TypeVar("T")
Encoded = tuple[list[int], tuple[MediaSpan, ...]]
"""The tokens of a prompt, and the places of its images and audio."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation to answer, in the same terms for all chat APIs. Raises InvalidRequest.

    `messages` are as `ChatFormat.encode` takes them. `max_tokens` None: as many as the prompt leaves of the context.
    `logprobs` is the number of alternatives for each token (None: no logprobs).
    """

    messages: Sequence[Json]
    calls: AllowedCalls = AllowedCalls()  # noqa: RUF009 - frozen
    template: TemplateOptions = TemplateOptions()  # noqa: RUF009 - frozen
    constraint: Constraint | None = None
    options: Options = Options()  # noqa: RUF009 - frozen
    max_tokens: int | None = None
    logprobs: int | None = None
    reasoning: ReasoningOptions = ReasoningOptions()  # noqa: RUF009 - frozen
    names: Names = Names()  # noqa: RUF009 - frozen

    def __post_init__(self) -> None:
        if len(self.messages) > MAX_ITEMS:
            self._refuse(f"makes {len(self.messages)} messages of a conversation, the limit is {MAX_ITEMS}")
        n_calls = max((len(message.get("tool_calls", ())) for message in self.messages), default=0)
        if n_calls > MAX_CALLS:
            self._refuse(f"has {n_calls} calls in one message of the assistant, the limit is {MAX_CALLS}")
        if self.template.continue_final_message and self.messages[-1].get("tool_calls"):
            self._refuse("ends with a message that calls functions: send their results, no answer can continue it")

    def _refuse(self, problem: str) -> None:
        raise InvalidRequest(f"{self.names.messages} {problem}", param=self.names.messages)

    @property
    def media(self) -> list[tuple[str, Json]]:
        """Return the role and the part of each image and recording, as `media_part` makes it."""
        return [
            (message["role"], part)
            for message in self.messages
            for part in message.get(PARTS, ())
            if part["type"] in MEDIA_ROLES
        ]

    @property
    def contents(self) -> list[str]:
        return [message["content"] for message in self.messages]


async def of_chat(call: Call, chat: Callable[[], Chat], work: Callable[[Chat, ServedModel, Media], T]) -> T:
    """Return the result of `work` on a chat request. Its images or its audio are decoded before."""
    state, served, owner = call.state, call.served, call.record.cache_owner

    def begin() -> tuple[Chat, list[Source], T | None]:
        found = chat()
        check_roles(found, served)
        sources = [source_of(part) for _, part in found.media]
        return found, sources, None if sources else work(found, served, NO_MEDIA)

    found, sources, made = await call.on_lane(begin)
    if made is not None:
        return made
    call.hold(max(0, call.record.body_bytes - SMALL_BYTES))  # it waits for media of others
    media = await Media.of(partial(decoded, state, sources, served.info, owner))
    return await call.on_lane(lambda: work(found, served, media))


def chat_request(
    chat: Chat, served: ServedModel, media: Media = NO_MEDIA, prompt: Encoded | None = None
) -> ModelRequest:
    """Return the engine's request for a conversation, whose `prompt` may be known.

    Raises ParameterError or InvalidRequest, before it tokenizes where it can.
    """
    options, context = chat.options, served.info.max_model_len
    constraint = chat.constraint
    if chat.calls.functions:
        constraint = call_constraint(chat.calls, style_of(served), served.tokenizer, constraint)
    grammar, fields = enforceable(constraint, served)
    params = sampling(
        options,
        served,
        max_tokens=chat.max_tokens or context,
        logprobs=chat.logprobs,
        prompt_logprobs=options.prompt_logprobs,
        grammar=grammar,
    )
    tokens, places = prompt or encode_chat(chat, served, media)
    n_begin = n_begin_tokens(tokens, served.tokenizer)
    cut = truncated(tokens, n_begin, options.truncate_prompt_tokens, chat.max_tokens or 1, served)
    spans = spans_after(places, n_begin, len(tokens) - len(cut))
    max_tokens = chat.max_tokens or max(1, context - len(cut))
    check_prompt(cut, max_tokens, served, chat.names)
    continues = chat.template.continue_final_message
    constrained = chat.constraint is not None  # by the client, whose grammar then decides how the answer starts
    last_words = chat.messages[-1]["content"]
    reasoning = reasoning_of(chat.reasoning, served, cut, last_words, continues=continues, constrained=constrained)
    whole = with_thought(reasoning, chat.reasoning, served, grammar)
    if (params.max_tokens, params.grammar) != (max_tokens, whole):
        params = replace(params, max_tokens=max_tokens, grammar=whole)
    left = media.after(len(places) - len(spans))
    return ModelRequest(
        (submit_of(cut, params, options, served, spans, left.inputs),),
        restore=left.restore,
        timeout=options.timeout,
        return_token_ids=options.return_token_ids,
        starts_message=not continues and not constrained,
        prompt_logprobs=options.prompt_logprobs,
        stop_token_ids=options.stop_token_ids,
        grammar_fields=fields or (chat.reasoning.field,),
        visible_control=_visible(chat, served),
        reasoning=reasoning,
        ignored=(*ignored_reasoning(chat.reasoning, served), *_left_out(chat, served)),
    )


def _left_out(chat: Chat, served: ServedModel) -> tuple[str, ...]:
    """Return the client's names of texts that the chat format leaves out, at most one more than a header names."""
    if served.chat is None or served.chat.call_style is None:  # calls are part of the texts
        return ()
    found = served.chat.left_out(chat.messages, chat.calls.functions)
    names = dict.fromkeys((chat.names.content or chat.names.messages).format(index) for index in found)
    return (*names,)[: MAX_IGNORED + 1]


def encode_text(served: ServedModel, text: str, *, add_bos: bool = True, param: str = "prompt") -> list[int]:
    """Return token ids of a text. Raises InvalidRequest, before tokenizing, for a text that cannot fit the context."""
    check_size([text], param, served)
    return served.tokenizer.encode(text, add_bos=add_bos, parse_control=True)


def encode_chat(chat: Chat, served: ServedModel, media: Media) -> Encoded:
    """Return the tokens of a conversation, and the places of its media. Raises ParameterError or InvalidRequest."""
    format_, messages, options = conversation(chat, served)
    try:
        thoughts = [_thought(message) for message in chat.messages]
        if _n_bytes([*chat.contents, *thoughts]) > served.max_prompt_bytes:  # before the format left out some of it
            check_size([format_.render(messages, **options)], chat.names.messages, served)
        tokens = format_.encode(messages, **options)
    except ParameterError as error:
        effort_field = "chat_template_kwargs" if EFFORT in chat.template.variables else chat.reasoning.field
        fields = {"messages": chat.names.messages, EFFORT: effort_field}
        if chat.constraint is not None:
            fields[SCHEMA] = chat.constraint.fields[0]
        if error.param not in fields:
            raise
        raise InvalidRequest(str(error), param=fields[error.param]) from error
    return expanded(tokens, media, served, chat.names.messages)


def conversation(chat: Chat, served: ServedModel) -> tuple[ChatFormat, Sequence[Json], Json]:
    """Return the model's chat format, with messages and options as it takes them.

    Raises InvalidRequest where there is no format, or for a conversation that cannot fit the context.
    """
    if served.chat is None:
        message = "this model has no chat template: start the server with --chat-template, or use /v1/completions"
        raise InvalidRequest(message, param=chat.names.messages, code="no_chat_template")
    messages, functions = chat.messages, chat.calls.functions
    tools = [function.described() for function in functions]
    contents = chat.contents
    if served.chat.may_strip:  # the prompt has at least this
        contents = [content.strip() for content in contents]
    check_size(contents, chat.names.messages, served)
    check_size([json.dumps([tools, *(message.get("tool_calls") for message in messages)])], "tools", served)
    variables = reasoning_variables(chat.reasoning, served, chat.template.variables)
    options = chat.template._asdict() | {"variables": variables}
    if chat.constraint is not None and chat.constraint.schema is not None and served.chat.tells_schema:
        check_size([json.dumps(chat.constraint.schema)], chat.constraint.fields[0], served)
        options |= {SCHEMA: chat.constraint.schema}
    if served.chat.call_style is None:
        return served.chat, explained(messages, functions), options
    return served.chat, style_of(served).with_ids(messages), options | {"tools": tools or None}


def _thought(message: Mapping[str, Any]) -> str:
    """Return the text of all thoughts of a message."""
    parts = message.get(PARTS, ())
    return message.get(THOUGHT, "") + "".join(part.get("thinking", "") for part in parts)


def check_roles(chat: Chat, served: ServedModel) -> None:
    """Raise InvalidRequest for an image or audio in a message where the model takes none."""
    for role, part in chat.media:
        if role not in served.media_roles.get(part["type"], ()):
            why = refused_media(part["type"], role, served.media_roles)
            raise InvalidRequest(f"{part['field']} is not supported: {why}", param=part["field"])


def _visible(chat: Chat, served: ServedModel) -> frozenset[str]:
    """Return the control tokens that are part of the text: the marks of calls, and of a thought that is not apart."""
    calls = style_of(served).control(served.tokenizer) if chat.calls.functions else frozenset()
    marks = served.reasoning
    if marks is None or chat.reasoning.apart:
        return calls
    return calls | {name for name in (marks.opening, marks.closing) if name in served.tokenizer.control}


def enforceable(constraint: Constraint | None, served: ServedModel) -> tuple[str | None, tuple[str, ...]]:
    """Return the grammar of a constraint, and its fields. Raises InvalidRequest for a model without end tokens."""
    if constraint is None:
        return None, ()
    if not served.defaults.eos_token_ids:
        first = constraint.fields[0]
        raise InvalidRequest(f"{first} needs a model with an end token, and this one has none", param=first)
    return constraint.serialized(), constraint.fields


def n_begin_tokens(tokens: list[int], tokenizer: Tokenizer) -> int:
    """Return how many of the first tokens are those that the tokenizer puts before every text."""
    begin = tokenizer.encode("", add_bos=True, parse_control=True)
    return len(begin) if tokens[: len(begin)] == begin else 0


def truncated(tokens: list[int], n_begin: int, n_last: int | None, max_tokens: int, served: ServedModel) -> list[int]:
    """Cut a prompt to its begin tokens and its end, `n_last` tokens in all (-1: as many as fit beside `max_tokens`)."""
    limit = served.info.max_model_len
    if n_last is None:
        return tokens
    if n_last > limit:
        message = f"truncate_prompt_tokens must be at most the context of {limit} tokens, got {n_last}"
        raise InvalidRequest(message, param="truncate_prompt_tokens")
    n_end = (n_last if n_last > 0 else max(1, limit - max_tokens)) - n_begin
    return tokens if len(tokens) <= n_begin + n_end else tokens[:n_begin] + tokens[len(tokens) - n_end :]


def check_size(texts: Sequence[str], param: str, served: ServedModel) -> None:
    """Raise InvalidRequest for texts that do not fit the context even if all their tokens are the longest ones."""
    size, limit = _n_bytes(texts), served.max_prompt_bytes
    if size > limit:
        raise ContextExceeded(
            f"this model's context is {served.info.max_model_len} tokens, which hold at most {limit} bytes of text, "
            f"but {param} has {size}",
            param=param,
            prompt=-(-size // served.longest_piece),
            limit=served.info.max_model_len,
            bound=True,
        )


def _n_bytes(texts: Sequence[str]) -> int:
    return sum(len(text.encode()) for text in texts)


def check_prompt(tokens: list[int], max_tokens: int, served: ServedModel, names: Names) -> None:
    """Raise for a prompt that is empty, leaves no space for `max_tokens` or has ids outside the vocabulary."""
    limit, param, limit_param = served.info.max_model_len, names.messages, names.max_tokens
    if not tokens:
        raise InvalidRequest(f"{param} is empty: the prompt must have at least 1 token", param=param)
    if len(tokens) + max_tokens > limit:
        raise ContextExceeded(
            f"this model's context is {limit} tokens, but the request needs {len(tokens) + max_tokens}: "
            f"{len(tokens)} in the prompt and {max_tokens} for the answer ({limit_param})",
            param=param if len(tokens) >= limit else limit_param,
            prompt=len(tokens),
            answer=max_tokens,
            limit=limit,
        )
    check_ids(param, tokens, served.info.vocab_size)
