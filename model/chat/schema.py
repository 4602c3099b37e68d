"""The JSON schema of an answer in the words of the prompt."""

from collections.abc import Mapping
from typing import Any

SCHEMA = "schema"
"""The argument of `ChatFormat.encode`, and the parameter of its errors."""
FIELD = "response_format"
"""The field of mistral-common's requests, and the variable of the templates that it generates."""


def response_format(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of `FIELD` for a schema. Its name is written nowhere."""
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}
