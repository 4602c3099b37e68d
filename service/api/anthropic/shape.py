"""The answer of Anthropic's Messages API, whole or as events."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from service.access.record import RequestRecord
from service.api.anthropic.answer_types import (
    STOP_REASONS,
    AppliedEdit,
    Content,
    Ending,
    MessageAnswer,
    MessageState,
    MessageUsage,
    Reported,
)
from service.errors.dialects import ANTHROPIC
from service.errors.errors import ApiError
from service.generation.choice import Delta
from service.generation.served import ServedModel
from service.generation.usage import Timings, Usage
from service.http.sse import Comments, Json, TypedEvents
from service.schema.tools import AllowedCalls
from service.structured.blocks import AnswerBlock, BlockReader, BlockStep, arguments_of
from service.structured.call_reader import reader_of

PING_SECONDS = 45.0
"""Seconds between pings in a silence. Proxies close a connection after 60. Claude Code leaves 300 s after the thirtieth
ping or comment in a row: after 27 minutes. A message_delta would hold it longer, but litellm ends the answer there."""
SIGNATURE = "noria"
"""The signature of every thought: clients must send one back, and nothing here depends on it."""

DELTAS = {
    "thought": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "call": ("input_json_delta", "partial_json"),
}
"""The type of a delta, and the name of its text, by the kind of the block."""


@dataclass(slots=True)
class MessageShape(TypedEvents):
    """Writes `message` objects, and the events that build one.

    `calls` are those that the text may contain. Without `shows_thoughts` the blocks of thoughts are empty. `edits` is
    the report of edits, if the request has any.
    """

    record: RequestRecord
    calls: AllowedCalls
    shows_thoughts: bool = True
    edits: Sequence[AppliedEdit] | None = None
    model: str = ""
    blocks: BlockReader = field(default_factory=BlockReader)
    id: str = field(default_factory=lambda: f"msg_{uuid.uuid4().hex}")
    _begun: bool = False  # whether `message_start` was sent
    _content: list[Content] = field(default_factory=list)  # the complete blocks

    def identify(self, unique: str, created: int) -> None:
        self.id = f"msg_{unique}"

    def begin(self, served: ServedModel, name: str) -> None:
        self.model, self.blocks = name, reader_of(served, self.calls, Random(self.id))

    def keep_alive(self) -> tuple[bytes, float]:
        """Return `message_start`, whose usage counts the prompt only, then pings: the client must see events.

        Before the prompt is tokenized it is a comment.
        """
        if self.record.submitted is None:
            return Comments.keep_alive(self)
        events = self.opening(0, Usage(self.record.prompt_tokens or 0)) or [{"type": "ping"}]
        return b"".join(map(self.frame, events)), PING_SECONDS

    def opening(self, index: int, usage: Usage) -> list[Json]:
        if self._begun:
            return []
        self._begun = True
        return [{"type": "message_start", "message": self._message(Delta(), usage)}, {"type": "ping"}]

    def chunks(self, index: int, delta: Delta, usage: Usage) -> list[Json]:
        events = [event for step in self.blocks.feed(delta) for event in self._events(step)]
        if delta.finish is not None:
            ending = {"type": "message_delta", "delta": self._end_fields(delta), "usage": usage_json(usage)}
            events += [ending | self._report(), {"type": "message_stop"}]
        return events

    def closing(self, usage: Usage) -> list[Json]:
        return []

    def whole(self, parts: Sequence[Delta], usage: Usage, timings: Timings) -> MessageAnswer:
        """Return the message that the events build."""
        self.chunks(0, parts[0], usage)
        return {**self._message(parts[0], usage), "timings": timings}

    def failure(self, error: ApiError) -> Json:
        return ANTHROPIC.write(error)

    def _events(self, step: BlockStep) -> Iterator[Json]:
        block, index = step.block, {"index": len(self._content)}
        match step.change:
            case "begin":
                yield {"type": "content_block_start", **index, "content_block": _content(block)}
            case "text" if self.shows_thoughts or block.kind != "thought":
                kind, name = DELTAS[block.kind]
                yield {"type": "content_block_delta", **index, "delta": {"type": kind, name: step.text}}
            case "end":
                if block.kind == "thought":
                    signed = {"type": "signature_delta", "signature": SIGNATURE}
                    yield {"type": "content_block_delta", **index, "delta": signed}
                yield {"type": "content_block_stop", **index}
                hidden = block.kind == "thought" and not self.shows_thoughts
                self._content.append(_content(block, "" if hidden else block.text, SIGNATURE))

    def _end_fields(self, delta: Delta) -> Ending:
        if delta.stop is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": delta.stop}
        reason = self.blocks.finish(delta.finish)
        return {"stop_reason": STOP_REASONS[reason] if reason else None, "stop_sequence": None}

    def _message(self, delta: Delta, usage: Usage) -> MessageState:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [*self._content],
            **self._end_fields(delta),
            "usage": usage_json(usage),
            **self._report(),
        }

    def _report(self) -> Reported:
        return {} if self.edits is None else {"context_management": {"applied_edits": self.edits}}


def _content(block: AnswerBlock, text: str = "", signature: str = "") -> Content:
    """Return the JSON of a block. A cut call has the arguments that Anthropic's packages read in its stream."""
    if block.kind == "thought":
        return {"type": "thinking", "thinking": text, "signature": signature}
    if block.kind == "text":
        return {"type": "text", "text": text}
    arguments = arguments_of(text, partial=True) or {}
    return {"type": "tool_use", "id": block.id, "name": block.name, "input": arguments}


def usage_json(usage: Usage) -> MessageUsage:
    """Return the usage. Anthropic's `input_tokens` leave out those that were read from the cache."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }
