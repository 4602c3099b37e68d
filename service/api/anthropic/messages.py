"""`POST /v1/messages` and its `count_tokens`: the bodies, the internal request made of them, and the routes."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator
from starlette.responses import Response

from model.chat.reasoning import THOUGHT
from model.errors import quoted
from model.sampling_params import MAX_STOP_CHARS, MAX_STOPS, RANGES
from service.access.record import Policy
from service.api.answering import answered, computed_response
from service.api.anthropic.answer_types import AppliedEdit, CountedTokens, MessageAnswer
from service.api.anthropic.context import ContextManagement, Draft, edited
from service.api.anthropic.shape import MessageShape
from service.api.anthropic.thinking import Adaptive, Effort, Enabled, ThinkingConfig, options_of
from service.api.anthropic.tools import (
    AnyTool,
    DocumentBlock,
    ImageBlock,
    RedactedBlock,
    TextBlock,
    Texts,
    ThinkingBlock,
    ToolChoice,
    ToolResult,
    ToolUse,
    pieces_of,
)
from service.api.call import Answer, Call
from service.api.media import Media
from service.api.prompt import Chat, chat_request, of_chat
from service.api.routes import HELLO, post
from service.errors.dialects import ANTHROPIC
from service.errors.errors import InvalidRequest
from service.generation.request import ModelRequest
from service.generation.served import ServedModel
from service.schema.conversation import TemplateOptions, contents
from service.schema.fields import HINTS, MAX_ITEMS, Body, Items, Json, ModelBody, only, optional, ranged, unsupported
from service.schema.generation import MAX_USER, StreamBody
from service.schema.options import Options, given
from service.schema.tools import MAX_TOOLS, AllowedCalls
from service.structured.constraint import json_constraint

Sentence = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]

Block = TextBlock | ImageBlock | DocumentBlock | ThinkingBlock | RedactedBlock | ToolUse | ToolResult
Blocks = str | Annotated[Items[Block], Field(max_length=MAX_ITEMS)]
OF_ROLES: dict[str, tuple[type[Body], ...]] = {
    "user": (ToolUse, ThinkingBlock, RedactedBlock),
    "assistant": (ToolResult, ImageBlock, DocumentBlock),
    "system": (ToolUse, ThinkingBlock, RedactedBlock, ToolResult, ImageBlock, DocumentBlock),
}
"""The types of blocks that a message of this role must not have."""
BILLING = "x-anthropic-billing-header:"
"""The beginning of a line that Claude Code puts before its system prompt. It differs in each request, so that no prompt
would begin with a cached prefix, and no model needs it."""


class MessageParam(Body):
    """A message of a conversation."""

    role: Literal["user", "assistant", "system"] = Field(
        description="user, assistant, or system: instructions at this place of the conversation. Consecutive messages "
        "of one role are joined."
    )
    content: Blocks = Field(
        description="The text, or a list of blocks: text, `thinking` and `tool_use` (assistant), `image`, "
        "`document` and `tool_result` (user)."
    )

    @field_validator("role", mode="before")
    @classmethod
    def _check_role(cls, role: Any) -> Any:
        """Refuse a role in the words that Claude Code knows: it then leaves such messages out."""
        if role not in [*OF_ROLES]:
            words = "Input should be 'user' or 'assistant', or 'system' with text"
            raise unsupported(None, f"{quoted(role)} is not supported: {words}")
        return role

    @model_validator(mode="after")
    def _check_blocks(self) -> Self:
        for block in self.blocks:
            if isinstance(block, OF_ROLES[self.role]):
                raise unsupported("content", f"a message of role {self.role} cannot have a block of type {block.type}")
        return self

    @property
    def blocks(self) -> list[Block]:
        return [] if isinstance(self.content, str) else self.content


class Metadata(Body):
    """Metadata of a request."""

    user_id: str | None = optional("The end user. The log has a hash of it.", max_length=MAX_USER)


class OutputFormat(Body):
    """The format of the answer."""

    type: Literal["json_schema"] = Field(description='"json_schema", the only type.')
    schema_: dict[str, Any] = Field(alias="schema", description="The JSON schema of the answer.")


class OutputConfig(Body):
    """Options of the answer."""

    effort: Effort | None = optional(
        "How long the model thinks, unless `thinking` is disabled. It means nothing to a model without reasoning."
    )
    format: OutputFormat | None = optional("The format: JSON that follows a schema. Default: text.")


class ConversationBody(ModelBody):
    """The request body of `POST /v1/messages/count_tokens`; `POST /v1/messages` has more fields."""

    harmless = only(cache_control=HINTS, mcp_servers=([],), speed=("standard",))
    messages: Items[MessageParam] = Field(
        max_length=MAX_ITEMS,
        description="At least one message. If the last is an assistant message, the answer continues it.",
    )
    context_management: ContextManagement | None = optional("Changes to earlier messages.")
    output_config: OutputConfig | None = optional("Options of the answer: `effort` and `format`.")
    system: Texts | None = optional(f"The system prompt. A first line `{BILLING} ...` is left out.")
    thinking: ThinkingConfig | None = optional("Whether the model thinks, and how long. Default: the model decides.")
    tools: Items[AnyTool] | None = optional("The tools that the model may call.", max_length=MAX_TOOLS)
    tool_choice: ToolChoice | None = optional("Which tools the model may call. Default: auto with tools, else none.")

    def check(self) -> None:
        if not self.messages:
            raise InvalidRequest("messages must not be empty", param="messages")
        if all(message.role == "system" for message in self.messages):
            message = "messages must have a message of role user or assistant, got only messages of role system"
            raise InvalidRequest(message, param="messages")
        self.check_computed(self.calls)

    @cached_property
    def calls(self) -> AllowedCalls:
        """Return the functions that the answer may call. Raises InvalidRequest."""
        return (self.tool_choice or ToolChoice(type="auto")).allowed_calls([tool.function for tool in self.tools or ()])

    def chat(self) -> Chat:
        """Return the conversation to answer. Raises InvalidRequest. Large schemas take time: not for the event loop."""
        words = _without_billing(self.system)
        groups = groupby(enumerate(self.messages), key=lambda entry: entry[1].role)
        messages = [message for role, group in groups for message in _plain(role, [*group])]
        continues = self.messages[-1].role == "assistant"
        options = TemplateOptions(add_generation_prompt=not continues, continue_final_message=continues)
        if words and messages[0]["role"] == "system":
            words = f"{words}\n\n{messages.pop(0)['content']}"
        system = [{"role": "system", "content": words}] if words else []
        config = self.output_config or OutputConfig()
        format_ = config.format
        return Chat(
            system + messages,
            self.calls,
            options,
            json_constraint(format_.schema_, "output_config.format") if format_ else None,
            reasoning=options_of(self.thinking, config.effort),
        )


class MessagesBody(ConversationBody, StreamBody):
    """The request body of `POST /v1/messages`."""

    harmless = only(
        **ConversationBody.harmless,
        billing_policy=(),
        container=(),
        diagnostics=({}, {"previous_message_id": None}),
        fallbacks=([],),
        inference_geo=("global",),
        thread=(),
        service_tier=("auto", "standard_only"),
    )
    max_tokens: int = Field(
        ge=1,
        le=RANGES["max_tokens"][1],
        description="The maximum number of generated tokens. Prompt and answer together must fit the context.",
    )
    metadata: Metadata | None = optional("Metadata: only `user_id` is supported.")
    user_profile_id: str | None = optional("Whom the request is for. It has no effect.", max_length=MAX_USER)
    workspace_id: str | None = optional("The client's workspace. It has no effect.", max_length=MAX_USER)
    stop_sequences: Items[Sentence] | None = optional("Strings before which the text ends.", max_length=MAX_STOPS)
    seed: int | None = ranged("seed")
    temperature: float | None = ranged("temperature")
    top_p: float | None = ranged("top_p")
    top_k: int | None = ranged("top_k")

    def check(self) -> None:
        super().check()
        budget = self.thinking.budget_tokens if isinstance(self.thinking, Enabled) else 0
        if budget >= self.max_tokens:
            message = f"thinking.budget_tokens must be less than max_tokens ({self.max_tokens}), got {budget}"
            raise InvalidRequest(message, param="thinking.budget_tokens")

    @property
    def shows_thoughts(self) -> bool:
        return not isinstance(self.thinking, Enabled | Adaptive) or self.thinking.display != "omitted"

    @property
    def end_user(self) -> str | None:
        return self.metadata.user_id if self.metadata else None

    def chat(self) -> Chat:
        sampling = given(seed=self.seed, temperature=self.temperature, top_p=self.top_p, top_k=self.top_k)
        options = Options(sampling, stops=tuple(self.stop_sequences or ()))
        return replace(super().chat(), options=options, max_tokens=self.max_tokens)


def _plain(role: str, messages: Sequence[tuple[int, MessageParam]]) -> list[Json]:
    """Join consecutive messages of one role for a chat format: tool results, then one message with all else.

    Each message comes with its index in the request.
    """
    blocks = [block for _, message in messages for block in message.blocks]
    results = [
        block.plain(f"messages[{index}].content[{at}]")
        for index, message in messages
        for at, block in enumerate(message.blocks)
        if isinstance(block, ToolResult)
    ]
    calls = [block.plain() for block in blocks if isinstance(block, ToolUse)]
    thought = "\n\n".join(block.thinking for block in blocks if isinstance(block, ThinkingBlock) and block.thinking)
    pieces = _joined([pieces_of(message.content, f"messages[{index}].content") for index, message in messages])
    if results and not pieces:
        return results
    others = {"tool_calls": calls, THOUGHT: thought}
    known = {key: value for key, value in others.items() if value}
    return [*results, {"role": role, **contents(pieces), **known}]


def _joined(messages: Sequence[Sequence[str | Json]]) -> list[str | Json]:
    """Join the pieces of several messages, with a blank line where the texts of two meet."""
    joined: list[str | Json] = []
    for pieces in messages:
        meet = joined and pieces and isinstance(joined[-1], str) and isinstance(pieces[0], str)
        joined += ["\n\n", *pieces] if meet else pieces
    return joined


def _without_billing(system: str | list[TextBlock] | None) -> str:
    """Return the text of the system prompt without the first line of its first block, if that is the billing line."""
    texts = [block.text for block in system] if isinstance(system, list) else [system or ""]
    if texts and texts[0].startswith(BILLING):
        texts[0] = texts[0].partition("\n")[2]
    return "".join(texts)


@post(
    "/v1/messages",
    body=MessagesBody,
    request={"messages": HELLO, "max_tokens": 8},
    answer=MessageAnswer,
    policy=Policy(ANTHROPIC, operation="chat", resumes=True),
)
async def messages(call: Call, body: MessagesBody) -> Answer:
    """Answer a conversation, in Anthropic's Messages API"""
    shape = MessageShape(call.record, body.calls, body.shows_thoughts)

    def request(chat: Chat, served: ServedModel, media: Media) -> ModelRequest:
        made, shape.edits = edited_request(body.context_management, chat, served, media)
        return made

    await call.admitted(body, shape)
    return await answered(call, of_chat(call, body.chat, request), shape)


def edited_request(
    management: ContextManagement | None, chat: Chat, served: ServedModel, media: Media
) -> tuple[ModelRequest, Sequence[AppliedEdit] | None]:
    """Return the engine's request for an edited conversation, and the report of the edits, if it has any."""
    draft, edits = edited(management, Draft(chat, served, media))
    made = chat_request(draft.chat, served, draft.media, draft.prompt if edits else None)
    return made, edits if management else None


@post(
    "/v1/messages/count_tokens",
    body=ConversationBody,
    request={"messages": HELLO},
    answer=CountedTokens,
    policy=Policy(ANTHROPIC),
)
async def count_tokens(call: Call, body: ConversationBody) -> Response:
    """Count the tokens of a conversation

    The number is that of the prompt that `/v1/messages` would compute.
    """

    def counted(chat: Chat, served: ServedModel, media: Media) -> CountedTokens:
        original = Draft(chat, served, media)
        draft, _ = edited(body.context_management, original)
        n_tokens = len(draft.prompt[0])
        if body.context_management is None:
            return {"input_tokens": n_tokens}
        return {"input_tokens": n_tokens, "context_management": {"original_input_tokens": original.n_tokens}}

    await call.loaded()
    return await computed_response(call, await of_chat(call, body.chat, counted))
