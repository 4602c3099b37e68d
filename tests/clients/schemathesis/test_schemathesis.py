"""Valid and invalid generated requests to a live server. It answers without a 5xx, and as its OpenAPI document says."""

import os
from typing import Any

import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import checks
from schemathesis.specs.openapi import checks as openapi_checks

LONGEST = 256
"""Of lists. Schemathesis fills a list to one past its limit: 16,385 messages take minutes to generate and are larger
than a body may be. Tests of the service hold those limits."""
CHECKS = (
    checks.not_a_server_error,
    openapi_checks.status_code_conformance,
    openapi_checks.content_type_conformance,
    openapi_checks.response_schema_conformance,
    openapi_checks.negative_data_rejection,
)
UNLIMITED = {
    "/v1/chat/completions": "max_completion_tokens",
    "/v1/fim/completions": "max_tokens",
    "/v1/responses": "max_output_tokens",
}
"""The fields without which an answer may fill the context."""


def drop_long_lists(schema: Any) -> None:
    """Remove each `maxItems` greater than LONGEST."""
    if isinstance(schema, dict):
        if isinstance(limit := schema.get("maxItems"), int) and limit > LONGEST:
            del schema["maxItems"]
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            drop_long_lists(part)


@schemathesis.hook
def before_load_schema(context: schemathesis.HookContext, raw_schema: dict[str, Any]) -> None:
    drop_long_lists(raw_schema)


SCHEMA = schemathesis.openapi.from_url(os.environ["NORIA_URL"] + "/openapi.json").exclude(path="/v1/engine/events")
"""Without the feed, which does not end."""


@SCHEMA.parametrize()
@settings(max_examples=25, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_answers_are_as_described(case: schemathesis.Case) -> None:
    if isinstance(case.body, dict):
        if (name := UNLIMITED.get(case.path)) and case.body.get(name) is None:
            case.body[name] = 4
        for name in ("max_tokens", "max_completion_tokens", "max_output_tokens"):
            value = case.body.get(name)
            if isinstance(value, int) and 4 < value < 2**31:  # a valid number, but no long answers
                case.body[name] = 4
    response = case.call(timeout=60)
    case.validate_response(response, checks=CHECKS)
