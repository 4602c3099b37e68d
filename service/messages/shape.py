"""Answers as Anthropic's clients expect them: a message of one text block, whole or as typed events."""

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from service.choice import Delta
from service.errors import ApiError, anthropic_body
from service.generation import Usage
from service.sse import Json, TypedEvents

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


@dataclass(frozen=True, slots=True)
class MessageShape(TypedEvents):
    """`message` objects, and the events that build one."""

    model: str
    id: str = field(default_factory=lambda: f"msg_{uuid.uuid4().hex}")

    def opening(self, index: int, usage: Usage) -> list[Json]:
        return [
            {"type": "message_start", "message": self._message([], Delta(), usage)},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "ping"},
        ]

    def chunks(self, index: int, delta: Delta, usage: Usage) -> list[Json]:
        events: list[Json] = []
        if delta.text:
            text = {"type": "text_delta", "text": delta.text}
            events.append({"type": "content_block_delta", "index": 0, "delta": text})
        if delta.finish is not None:
            events += [
                {"type": "content_block_stop", "index": 0},
                {"type": "message_delta", "delta": ending(delta), "usage": usage_json(usage)},
                {"type": "message_stop"},
            ]
        return events

    def closing(self, usage: Usage) -> list[Json]:
        return []

    def whole(self, parts: Sequence[Delta], usage: Usage) -> Json:
        return self._message([{"type": "text", "text": parts[0].text}], parts[0], usage)

    def failure(self, error: ApiError) -> Json:
        return anthropic_body(error)

    def _message(self, content: list[Json], delta: Delta, usage: Usage) -> Json:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            **ending(delta),
            "usage": usage_json(usage),
        }


def ending(delta: Delta) -> Json:
    if delta.stop is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": delta.stop}
    reason = STOP_REASONS.get(delta.finish, delta.finish) if delta.finish else None
    return {"stop_reason": reason, "stop_sequence": None}


def usage_json(usage: Usage) -> Json:
    """Anthropic's count of input leaves out what the cache gave."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }
