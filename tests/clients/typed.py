"""Whether the examples of the ordinary suite (`tests/service/api/examples/`) have every field of a package's types."""

import json
from collections.abc import Iterable
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "service" / "api" / "examples"


def missing(vendor: str, path: str, fields: Iterable[str]) -> set[str]:
    """The fields of a request's type that no example has. The names of models are the server's own."""
    kind = json.loads((EXAMPLES / f"{vendor}.json").read_text())["types"][path]
    together = (name for body in kind["together"] for name in body)
    return {*fields} - {*kind["least"], *kind["fields"], *kind["refused"], *together, "model"}
