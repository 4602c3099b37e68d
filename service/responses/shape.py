"""Answers of the Responses API: a response of one message, whole or as typed, numbered events."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from service.choice import Delta
from service.errors import ApiError
from service.generation import Usage
from service.responses.schema import ResponsesBody
from service.served import ServedModel
from service.sse import Json, TypedEvents

PLACE = {"output_index": 0, "content_index": 0}


def repeated(body: ResponsesBody, served: ServedModel) -> Json:
    """What an answer repeats of its request, with the defaults that took effect; the rest holds its only value."""
    asked = {"temperature": body.temperature, "top_p": body.top_p}
    defaults = {name: served.defaults.sampling.get(name, 1.0) for name in asked}
    return {
        "background": False,
        "error": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": False,
        "text": {"format": body.format.model_dump(by_alias=True, exclude_none=True)},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "truncation": "disabled",
        **defaults,
        **{name: value for name, value in asked.items() if value is not None},
    }


@dataclass(slots=True)
class ResponseShape(TypedEvents):
    """`response` objects, and the events that build one. `about` is what `repeated` gives."""

    model: str
    about: Json
    id: str = field(default_factory=lambda: f"resp_{uuid.uuid4().hex}")
    item_id: str = field(default_factory=lambda: f"msg_{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    _sent: int = 0
    _texts: list[str] = field(default_factory=list)

    def opening(self, index: int, usage: Usage) -> list[Json]:
        empty = self._response("in_progress", [], None)
        return [
            self._event("created", response=empty),
            self._event("in_progress", response=empty),
            self._event("output_item.added", output_index=0, item=self._item("in_progress", [])),
            self._event("content_part.added", item_id=self.item_id, **PLACE, part=part("")),
        ]

    def chunks(self, index: int, delta: Delta, usage: Usage) -> list[Json]:
        events = []
        if delta.text:
            self._texts.append(delta.text)
            events.append(
                self._event("output_text.delta", item_id=self.item_id, **PLACE, delta=delta.text, logprobs=[])
            )
        if delta.finish is not None:
            events += self._ending(Delta("".join(self._texts), (), delta.finish), usage)
        return events

    def closing(self, usage: Usage) -> list[Json]:
        return []

    def whole(self, parts: Sequence[Delta], usage: Usage) -> Json:
        status = status_of(parts[0])
        return self._response(status, [self._item(status, [part(parts[0].text)])], usage)

    def failure(self, error: ApiError) -> Json:
        about = {"code": error.code, "message": error.message, "param": error.param}
        return {"type": "error", "sequence_number": self._sent, **about}

    def _ending(self, whole: Delta, usage: Usage) -> list[Json]:
        done, status = part(whole.text), status_of(whole)
        item = self._item(status, [done])
        return [
            self._event("output_text.done", item_id=self.item_id, **PLACE, text=whole.text, logprobs=[]),
            self._event("content_part.done", item_id=self.item_id, **PLACE, part=done),
            self._event("output_item.done", output_index=0, item=item),
            self._event(status, response=self._response(status, [item], usage)),
        ]

    def _event(self, kind: str, **data: object) -> Json:
        event = {"type": f"response.{kind}", "sequence_number": self._sent, **data}
        self._sent += 1
        return event

    def _item(self, status: str, content: list[Json]) -> Json:
        return {"type": "message", "id": self.item_id, "status": status, "role": "assistant", "content": content}

    def _response(self, status: str, output: list[Json], usage: Usage | None) -> Json:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": int(time.time()) if status == "completed" else None,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "model": self.model,
            "output": output,
            "usage": None if usage is None else usage_json(usage),
            **self.about,
        }


def status_of(delta: Delta) -> str:
    return "incomplete" if delta.finish == "length" else "completed"


def part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def usage_json(usage: Usage) -> Json:
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached, "cache_write_tokens": 0},
        "output_tokens": usage.completion,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.prompt + usage.completion,
    }
