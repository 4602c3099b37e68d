"""The answer of Anthropic's Messages API, whole or as events."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pydantic_core import from_json

from service.api.anthropic.answers import (
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
from service.generation.request import Timings, Usage
from service.http.sse import Json, TypedEvents
from service.structured.call_reader import CallReader, Piece, pieces_of

PING_SECONDS = 45.0
"""Seconds between pings in a silence. Proxies close a connection after 60. Claude Code leaves 300 s after the thirtieth
ping or comment in a row: after 27 minutes. A message_delta would hold it longer, but litellm ends the answer there."""
SIGNATURE = "noria"
"""The signature of every thought: clients must send one back, and nothing here depends on it."""


@dataclass(slots=True)
class MessageShape(TypedEvents):
    """Writes `message` objects, and the events that build one. With a `reader` the text may contain tool calls.

    Without `shows_thoughts` the blocks of thoughts are empty. `edits` is the report of edits, if the request has any.
    `n_prompt` is the number of the prompt's tokens.
    """

    model: str
    reader: CallReader | None = None
    shows_thoughts: bool = True
    edits: Sequence[AppliedEdit] | None = None
    n_prompt: int = 0
    id: str = field(default_factory=lambda: f"msg_{uuid.uuid4().hex}")
    _begun: bool = False  # whether `message_start` was sent
    _blocks: list[Content] = field(default_factory=list)  # the complete ones
    _open: Content | None = None  # the block being written, in its first state
    _parts: list[str] = field(default_factory=list)  # its text so far

    def keep_alive(self) -> tuple[bytes, float]:
        """`message_start`, whose usage counts the prompt only, then pings: the client must see events."""
        events = self.opening(0, Usage(self.n_prompt)) or [{"type": "ping"}]
        return b"".join(map(self.frame, events)), PING_SECONDS

    def opening(self, index: int, usage: Usage) -> list[Json]:
        if self._begun:
            return []
        self._begun = True
        return [{"type": "message_start", "message": self._message(Delta(), usage)}, {"type": "ping"}]

    def chunks(self, index: int, delta: Delta, usage: Usage) -> list[Json]:
        pieces = pieces_of(self.reader, delta.text, final=delta.finish is not None)
        events = [*self._thought_events(delta.thought)] if delta.thought else []
        events += [event for piece in pieces for event in self._piece_events(piece)]
        if delta.finish is not None:
            ending = {"type": "message_delta", "delta": self._end_fields(delta), "usage": usage_json(usage)}
            events += [*self._closing_events(), ending | self._report(), {"type": "message_stop"}]
        return events

    def closing(self, usage: Usage) -> list[Json]:
        return []

    def whole(self, parts: Sequence[Delta], usage: Usage, timings: Timings) -> MessageAnswer:
        """The message that the events build."""
        self.chunks(0, parts[0], usage)
        return {**self._message(parts[0], usage), "timings": timings}

    def failure(self, error: ApiError) -> Json:
        return ANTHROPIC.write(error)

    def _thought_events(self, thought: str) -> Iterator[Json]:
        if self._open is None or self._open["type"] != "thinking":
            yield from self._opening_events({"type": "thinking", "thinking": "", "signature": ""})
        if self.shows_thoughts:
            yield self._delta("thinking_delta", "thinking", thought)

    def _piece_events(self, piece: Piece) -> Iterator[Json]:
        if isinstance(piece, str):
            if self._open is None or self._open["type"] != "text":
                yield from self._opening_events({"type": "text", "text": ""})
            yield self._delta("text_delta", "text", piece)
        elif piece.id is not None and piece.name is not None:
            yield from self._opening_events({"type": "tool_use", "id": piece.id, "name": piece.name, "input": {}})
        else:
            yield self._delta("input_json_delta", "partial_json", piece.arguments)

    def _opening_events(self, block: Content) -> Iterator[Json]:
        yield from self._closing_events()
        self._open, self._parts = block, []
        yield {"type": "content_block_start", "index": len(self._blocks), "content_block": block}

    def _delta(self, kind: str, name: str, text: str) -> Json:
        self._parts.append(text)
        return {"type": "content_block_delta", "index": len(self._blocks), "delta": {"type": kind, name: text}}

    def _closing_events(self) -> Iterator[Json]:
        if self._open is None:
            return
        block, written = self._open, "".join(self._parts)
        if block["type"] == "thinking":
            yield self._delta("signature_delta", "signature", SIGNATURE)
        yield {"type": "content_block_stop", "index": len(self._blocks)}
        self._open = None
        if block["type"] == "text":
            self._blocks.append({**block, "text": written})
        elif block["type"] == "thinking":
            self._blocks.append({**block, "thinking": written, "signature": SIGNATURE})
        else:
            self._blocks.append({**block, "input": _parsed(written)})

    def _end_fields(self, delta: Delta) -> Ending:
        if delta.stop is not None:
            return {"stop_reason": "stop_sequence", "stop_sequence": delta.stop}
        reason = self.reader.finish(delta.finish) if self.reader else delta.finish
        return {"stop_reason": STOP_REASONS[reason] if reason else None, "stop_sequence": None}

    def _message(self, delta: Delta, usage: Usage) -> MessageState:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": [*self._blocks],
            **self._end_fields(delta),
            "usage": usage_json(usage),
            **self._report(),
        }

    def _report(self) -> Reported:
        return {} if self.edits is None else {"context_management": {"applied_edits": self.edits}}


def _parsed(arguments: str) -> Json:
    """The arguments; of a call that was cut short those that are whole, as Anthropic's packages read its stream."""
    try:
        return from_json(arguments, allow_partial=True)
    except ValueError:
        return {}


def usage_json(usage: Usage) -> MessageUsage:
    """Anthropic's `input_tokens` do not count those that were read from the cache."""
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }
