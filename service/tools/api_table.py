"""The tables of fields in docs/api.md, from the schemas. `python -m service.tools.api_table` writes them there."""

import json
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path

from pydantic.fields import FieldInfo

from service.embeddings.schema import EmbeddingsBody
from service.fields import Body
from service.messages.schema import ConversationBody, MessagesBody, Metadata, TextBlock, Turn
from service.responses.schema import InputMessage, InputPart, ResponsesBody, TextConfig, TextFormat
from service.schemas import (
    ApplyTemplateBody,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    Message,
    StreamOptions,
    TextPart,
    TokenizeBody,
)

ENDPOINTS: Mapping[str, type[Body]] = {
    "/v1/completions": CompletionBody,
    "/v1/chat/completions": ChatBody,
    "/v1/responses": ResponsesBody,
    "/v1/messages": MessagesBody,
    "/v1/messages/count_tokens": ConversationBody,
    "/v1/embeddings": EmbeddingsBody,
    "/tokenize": TokenizeBody,
    "/detokenize": DetokenizeBody,
    "/apply-template": ApplyTemplateBody,
}
PARTS: Mapping[str, type[Body]] = {
    "`messages`": Message,
    "a part of a message": TextPart,
    "`stream_options`": StreamOptions,
    "an item of `input`": InputMessage,
    "a part of an item": InputPart,
    "`text`": TextConfig,
    "`text.format`": TextFormat,
    "`messages` of /v1/messages": Turn,
    "a block of theirs, and of `system`": TextBlock,
    "`metadata` of /v1/messages": Metadata,
}
START, END = "<!-- fields: python -m service.tools.api_table -->", "<!-- end of fields -->"
POWERS = {2**31 - 1: "2^31 - 1", 2**63 - 1: "2^63 - 1", -(2**63): "-2^63"}
LIMITS = {"ge": "{} to", "gt": "above {} to", "le": "{}", "min_length": "length {} to", "max_length": "{}"}


def rendered() -> str:
    """Both tables as Markdown: every field x endpoint, then the fields of objects inside."""
    return "\n\n".join((_table(ENDPOINTS), "Inside them:", _table(PARTS)))


def document(text: str) -> str:
    """`text` with the tables between their marks as the schemas have them now. Raises ValueError without marks."""
    before, rest = text[: text.index(START)], text[text.index(END) :]
    return f"{before}{START}\n{rendered()}\n{rest}"


def _table(bodies: Mapping[str, type[Body]]) -> str:
    names = dict.fromkeys(chain.from_iterable((*body.model_fields, *body.harmless) for body in bodies.values()))
    lines = ["| field | " + " | ".join(bodies) + " | meaning |", "|---" * (len(bodies) + 2) + "|"]
    for name in names:
        cells = " | ".join(_cell(body, name) for body in bodies.values())
        lines.append(f"| `{name}` | {cells} | {_meaning(name, bodies.values())} |")
    return "\n".join(lines)


def _cell(body: type[Body], name: str) -> str:
    if name in body.model_fields:
        return "required" if body.model_fields[name].is_required() else "yes"
    if name in body.harmless:
        values = dict.fromkeys(f"`{json.dumps(value).removesuffix('.0')}`" for value in body.harmless[name])
        return "default only: " + (", ".join(values) or "`null`")
    return "400"


def _meaning(name: str, bodies: Iterable[type[Body]]) -> str:
    """What the field's descriptions say and its limits, each once."""
    fields = [body.model_fields[name] for body in bodies if name in body.model_fields]
    return " / ".join(dict.fromkeys(filter(None, map(_words, fields))))


def _words(field: FieldInfo) -> str:
    limits = [
        words.format(POWERS.get(value, f"{value:g}"))
        for item in field.metadata
        for kind, words in LIMITS.items()
        if (value := getattr(item, kind, None)) is not None
    ]
    if len(limits) == 1:
        limits.insert(0, "length up to")
    return f"{field.description} ({' '.join(limits)})" if limits else field.description or ""


if __name__ == "__main__":
    API = Path(__file__).parents[2] / "docs" / "api.md"
    API.write_text(document(API.read_text()))
