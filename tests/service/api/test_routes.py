"""A route declares itself once: the server, the metrics, the log and the documents read this declaration."""

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.responses import Response
from typing_extensions import TypedDict

from model.sampling_params import SamplingParams
from service.access.record import Policies, Policy
from service.api.answering import generated, whole_response
from service.api.call import Call
from service.api.routes import Route, get, json_response, post
from service.app import ROUTES
from service.engine.messages import Submit
from service.errors.dialects import ANTHROPIC, OPENAI
from service.generation.request import ModelRequest
from service.schema.fields import Body, ModelBody, optional
from tests.service.live import Live, running


class Echo(TypedDict):
    """How many tokens were generated."""

    generated: int


class Options(Body):
    loud: bool | None = optional("Whether it echoes loudly.")


class EchoBody(ModelBody):
    """`POST /v1/echo`."""

    options: Options | None = optional("How it echoes.")


def declared(**policy: Any) -> Route:
    """The whole of a new endpoint."""

    @post("/v1/echo", body=EchoBody, request={}, answer=Echo, policy=Policy(**policy))
    async def echo(call: Call, body: EchoBody) -> Response:
        """Echo nothing

        It generates three tokens.
        """
        await call.admitted(body)

        async def made() -> ModelRequest:
            return ModelRequest((Submit(0, [1, 2], SamplingParams(max_tokens=3)),))

        generation = await generated(call, made())
        return await whole_response(call, generation, lambda parts, usage, timings: {"generated": 3})

    return echo


ECHO = declared(dialect=ANTHROPIC, operation="chat")


@pytest.fixture(scope="module")
def echoing() -> Iterator[Live]:
    with running(api_keys=("k",), routes=(*ROUTES, ECHO)) as live:
        live.http.headers["x-api-key"] = "k"
        yield live


def test_it_is_served_and_counted(echoing: Live) -> None:
    before = outcomes(echoing)
    assert echoing.post("/v1/echo", {}).json() == {"generated": 3}
    assert echoing.post("/v1/echo", {"loud": True}).status_code == 400
    assert echoing.http.get("/v1/echo").status_code == 405
    after = outcomes(echoing)
    assert {name: after[name] - before[name] for name in after} == {"length": 1, "refused": 2}


@pytest.mark.parametrize("path", ["/", "/api/version", "/api/tags", "/v1/models", "/v1/models/fake", "/metrics"])
def test_head_is_answered_as_get_without_the_content(echoing: Live, path: str) -> None:
    """Probes and clients use it."""
    key = {"authorization": "Bearer k"}
    get, head = echoing.http.get(path, headers=key), echoing.http.head(path, headers=key)
    assert (head.status_code, head.headers["content-type"], head.content) == (200, get.headers["content-type"], b"")


def test_what_has_no_end_takes_no_head(echoing: Live) -> None:
    assert echoing.http.head("/v1/engine/events", headers={"authorization": "Bearer k"}).headers["allow"] == "GET"


def outcomes(live: Live) -> dict[str, float]:
    live.http.headers["authorization"] = "Bearer k"  # for /metrics
    found = {name: live.metric("noria_requests_total", outcome=name) for name in ("length", "refused")}
    del live.http.headers["authorization"]
    return found


def test_its_errors_have_the_shape_that_it_declares(echoing: Live) -> None:
    refused = echoing.http.post("/v1/echo", json={}, headers={"x-api-key": "wrong"})
    assert refused.status_code == 401
    assert refused.json()["error"]["type"] == "authentication_error"
    assert "x-api-key" in refused.json()["error"]["message"]
    for response in (echoing.post("/v1/echo", {"x": 1}), echoing.http.get("/v1/echo"), echoing.http.get("/v1/echo/x")):
        assert response.json()["type"] == "error"


def test_it_is_in_the_openapi_document(echoing: Live) -> None:
    headers = {"authorization": "Bearer k"}
    described = echoing.http.get("/openapi.json", headers=headers).json()
    operation = described["paths"]["/v1/echo"]["post"]
    assert (operation["summary"], operation["description"]) == ("Echo nothing", "It generates three tokens.")
    assert {"x-api-key": []} in operation["security"]
    content = operation["responses"]["200"]["content"]["application/json"]
    assert content["schema"] == {"$ref": "#/components/schemas/Echo"}
    assert "x-queue-ms" in operation["responses"]["200"]["headers"]
    refused = operation["responses"]["401"]["content"]["application/json"]["schema"]
    assert refused == {"$ref": "#/components/schemas/AnthropicError"}
    schemas = described["components"]["schemas"]
    assert schemas["Echo"]["required"] == ["generated"]
    assert set(schemas["EchoBody"]["properties"]) == {"model", "keep_alive", "ttl", "options"}


def test_a_route_that_hides_that_it_generates_fails(caplog: pytest.LogCaptureFixture) -> None:
    with running(routes=(*ROUTES, declared())) as live:
        assert live.post("/v1/echo", {}).status_code == 500
    assert "must declare an operation" in caplog.text


def test_a_quiet_open_route_needs_no_key_and_has_no_line(caplog: pytest.LogCaptureFixture) -> None:
    @get("/hush/{name}", answer=Echo, policy=Policy(open=True, quiet=True))
    async def hush(call: Call) -> Response:
        """Be quiet"""
        return json_response({"generated": 0})

    caplog.set_level(logging.INFO, logger="noria.access")
    with running(api_keys=("k",), routes=(*ROUTES, hush)) as live:
        assert live.http.get("/hush/a").status_code == 200
        assert live.http.get("/hush/a/b").status_code == 401
    lines = [record.getMessage() for record in caplog.records if record.name == "noria.access"]
    assert [line for line in lines if "hush" in line] == ["GET /hush/a/b"]


async def silent(call: Call) -> Response:
    return json_response({})


@pytest.mark.parametrize("answer", [None, Any, dict, dict[str, Any], EchoBody])
def test_a_route_without_an_answers_type_is_refused(answer: Any) -> None:
    silent.__doc__ = "Say nothing"
    with pytest.raises(TypeError, match="/x: the answer must be a TypedDict or str"):
        get("/x", answer=answer)(silent)
    with pytest.raises(TypeError, match="answer"):
        get("/x")(silent)  # type: ignore[call-arg]


def test_policies_of_paths() -> None:
    policies = Policies(
        [
            ("/v1/a", Policy(ANTHROPIC, open=True, operation="chat", quiet=True)),
            ("/v1/b", Policy()),
            ("/v1/b/{name:path}", Policy(ANTHROPIC, operation="chat")),
        ]
    )
    assert policies.of("/v1/a") == ("/v1/a", Policy(ANTHROPIC, open=True, operation="chat", quiet=True))
    assert policies.of("/v1/a/x/y") == (None, Policy(ANTHROPIC))
    assert policies.of("/v1/ab") == policies.of("/v1") == policies.of("") == (None, Policy(OPENAI))
    assert policies.of("/v1/b/x/y") == ("/v1/b/{name:path}", Policy(ANTHROPIC, operation="chat"))
    with pytest.raises(ValueError, match="/v1/a declare different policies"):
        Policies([("/v1/a", Policy()), ("/v1/a", Policy(open=True))])
