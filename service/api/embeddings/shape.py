"""Embeddings as OpenAI's clients expect them: of length 1, as numbers or as float32 bytes in base64."""

import base64
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import orjson

from service.generation.choice import Delta
from service.generation.generation import Usage
from service.http.sse import Json


@dataclass(frozen=True, slots=True)
class EmbeddingShape:
    """A `list` of `embedding` objects."""

    model: str
    base64: bool

    def whole(self, parts: Sequence[Delta], usage: Usage) -> Json:
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": self._written(delta.embedding)}
                for index, delta in enumerate(parts)
            ],
            "model": self.model,
            "usage": {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt},
        }

    def _written(self, embedding: Sequence[float]) -> str | orjson.Fragment:
        """Both forms have the same float32 values. JSON at once, for a thousand of them would hold the interpreter."""
        length = math.hypot(*embedding) or 1.0
        form = f"<{len(embedding)}f"
        data = struct.pack(form, *(value / length for value in embedding))
        return (
            base64.b64encode(data).decode() if self.base64 else orjson.Fragment(orjson.dumps(struct.unpack(form, data)))
        )
