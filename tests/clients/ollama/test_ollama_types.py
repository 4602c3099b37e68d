"""The fields of ollama's types, which the ordinary suite sends."""

import json

from ollama._types import ChatRequest, EmbedRequest, GenerateRequest, Options
from typed import EXAMPLES, missing

KINDS = {"/api/chat": ChatRequest, "/api/generate": GenerateRequest, "/api/embed": EmbedRequest}


def test_every_field_and_option_is_an_example() -> None:
    for path, kind in KINDS.items():
        assert not missing("ollama", path, kind.model_fields)
    generate = json.loads((EXAMPLES / "ollama.json").read_text())["types"]["/api/generate"]
    assert not {*Options.model_fields} - {name for options in generate["fields"]["options"] for name in options}
