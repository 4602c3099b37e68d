"""The table of headers is what answers have, what web pages may read, and what the OpenAPI document says."""

from collections.abc import Mapping
from typing import Any

from service.access.headers import HEADERS
from service.errors.dialects import OPENAI, error_response
from service.errors.errors import Unavailable
from tests.service.live import running

PAGE = {"origin": "https://app.example"}
OF_CONNECTIONS = {"x-accel-buffering", "x-content-type-options"}
"""Headers for proxies and browsers, which no client reads."""


def own(headers: Mapping[str, Any]) -> set[str]:
    return {name for name in headers if name.startswith("x-") or name in HEADERS} - OF_CONNECTIONS


def of(*kinds: str) -> set[str]:
    return {name for name, header in HEADERS.items() if header.of in kinds}


def test_answers_have_the_headers_of_the_table() -> None:
    body = {"prompt": "a", "max_tokens": 1, "ttl": 1}
    with running(cors_origins=(PAGE["origin"],)) as live:
        answer = live.http.post("/v1/completions", json=body, headers=PAGE)
        assert own(answer.headers) == of("any", "model", "body")
        assert [*HEADERS] == answer.headers["access-control-expose-headers"].split(", ")
        assert own(live.http.get("/live").headers) == of("any")
        assert own(live.http.get("/no").headers) == of("any", "final")
    assert own(error_response(Unavailable("x", "y"), OPENAI).headers) == of("retriable")


def test_the_document_describes_the_headers_of_the_table() -> None:
    with running() as live:
        paths = live.http.get("/openapi.json").json()["paths"]
    responses = paths["/v1/completions"]["post"]["responses"]
    assert responses["200"]["headers"].keys() == of("any", "model", "body")
    assert responses["400"]["headers"].keys() == of("any", "final")
    assert responses["503"]["headers"].keys() == of("any", "retriable")
    assert paths["/v1/models"]["get"]["responses"]["200"]["headers"].keys() == of("any")
