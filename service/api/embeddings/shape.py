"""The answer of `POST /v1/embeddings`: vectors of length 1, as numbers or as float32 bytes in base64."""

import base64
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import orjson
from typing_extensions import TypedDict

from service.api.examples import MODEL, TIMINGS
from service.generation.choice import Delta
from service.generation.usage import Timings, Usage


class Embedding(TypedDict):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(TypedDict):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(TypedDict):
    """The answer of `POST /v1/embeddings`."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage
    timings: Timings


EMBEDDINGS: EmbeddingList = {
    "object": "list",
    "data": [{"object": "embedding", "index": 0, "embedding": [0.6, -0.8]}],
    "model": MODEL,
    "usage": {"prompt_tokens": 5, "total_tokens": 5},
    "timings": TIMINGS,
}
EMBEDDINGS_BASE64: EmbeddingList = {
    **EMBEDDINGS,
    "data": [{"object": "embedding", "index": 0, "embedding": "mpkZP83MTL8="}],
}


@dataclass(frozen=True, slots=True)
class EmbeddingShape:
    """Writes the whole answer of a request for embeddings."""

    model: str
    base64: bool

    def whole(self, parts: Sequence[Delta], usage: Usage, timings: Timings) -> EmbeddingList:
        return {
            "object": "list",
            "data": [
                {"object": "embedding", "index": index, "embedding": self._written(delta.embedding)}
                for index, delta in enumerate(parts)
            ],
            "model": self.model,
            "usage": {"prompt_tokens": usage.prompt, "total_tokens": usage.prompt},
            "timings": timings,
        }

    def _written(self, embedding: Sequence[float]) -> list[float] | str:
        """The vector; both encodings hold the same float32 values.

        orjson encodes each list at once. A thousand Python lists of numbers would block the interpreter later.
        """
        length = math.hypot(*embedding) or 1.0
        layout = f"<{len(embedding)}f"
        data = struct.pack(layout, *(value / length for value in embedding))
        if self.base64:
            return base64.b64encode(data).decode()
        return cast("list[float]", orjson.Fragment(orjson.dumps(struct.unpack(layout, data))))
