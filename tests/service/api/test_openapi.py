"""The OpenAPI document holds every route, and its schemas are what routes take and answer."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator

from service.api.document import document
from service.api.forms import FORM
from service.api.routes import Route
from service.app import ROUTES
from service.errors.errors import ApiError
from service.errors.statuses import STATUSES
from tests.service.live import Live, running


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A server that may load the adapter and the other model of the examples, which only they use."""
    directory = tmp_path_factory.mktemp("adapters")
    (directory / "sql").mkdir()
    models = directory / "models.toml"
    models.write_text("".join(f'[[models]]\nname = "{name}"\nsource = "fake"\n' for name in ("fake", "chat")))
    with running(models=models, lora_dir=directory) as server:
        yield server


API = Path(__file__).parents[3] / "docs" / "api.md"
POSTED = [route for route in ROUTES if route.body is not None]
HELLO = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "f"}}]


@pytest.fixture(scope="module")
def described(live: Live) -> dict[str, Any]:
    return live.http.get("/openapi.json").json()


@pytest.fixture(scope="module")
def schemas(described: dict[str, Any]) -> dict[str, Any]:
    """The components, with every object closed: an answer may have no key that its type does not name."""
    components = described["components"]["schemas"]
    for node in nodes(components):
        if "properties" in node:
            node.setdefault("additionalProperties", False)
    return {"$defs": components}


def nodes(node: Any) -> Iterator[dict[str, Any]]:
    """Every object in JSON."""
    if isinstance(node, dict):
        yield node
    for value in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from nodes(value)


def validate(value: Any, name: str, schemas: dict[str, Any]) -> None:
    local = {"$defs": {key: moved(schema) for key, schema in schemas["$defs"].items()}, "$ref": f"#/$defs/{name}"}
    Draft202012Validator(local).validate(value)


def moved(node: Any) -> Any:
    """The schema with references to `$defs`."""
    if isinstance(node, dict):
        return {key: moved(value) for key, value in node.items()}
    if isinstance(node, list):
        return [moved(value) for value in node]
    return node.replace("#/components/schemas/", "#/$defs/") if isinstance(node, str) else node


def test_every_route_is_described(described: dict[str, Any]) -> None:
    assert {route.path.replace(":path", "") for route in ROUTES} == set(described["paths"])
    operations = [item for path in described["paths"].values() for item in path.values()]
    assert all(operation["summary"] for operation in operations)
    for route in ROUTES:
        operation = described["paths"][route.path.replace(":path", "")][route.methods[0].lower()]
        assert {*map(str, route.statuses)} <= {*operation["responses"]}
    assert len({operation["operationId"] for operation in operations}) == len(ROUTES)
    assert described == document(ROUTES)


def test_a_form_has_the_names_of_lists_and_the_plain_text_of_openai(described: dict[str, Any]) -> None:
    fields = described["components"]["schemas"]["TranscriptionBody"]["properties"]
    assert {"include[]", "timestamp_granularities[]", "file", "language"} <= {*fields}
    answer = described["paths"]["/v1/audio/transcriptions"]["post"]["responses"]["200"]
    assert {*answer["content"]} == {"application/json", "text/plain", "text/event-stream"}


def kinds(kind: type[ApiError]) -> Iterator[type[ApiError]]:
    yield kind
    for other in kind.__subclasses__():
        yield from kinds(other)


def test_the_statuses_of_all_errors_are_in_the_contract(described: dict[str, Any]) -> None:
    """Those that no route gives are sent before a route is known. docs/api.md has all of them in its table."""
    assert {kind.status for kind in kinds(ApiError)} <= {*STATUSES}
    operations = [item for path in described["paths"].values() for item in path.values()]
    listed = {int(status) for operation in operations for status in operation["responses"]}
    assert {*STATUSES} - listed == {405, 414, 431}
    assert all(("408" in item["responses"]) == ("requestBody" in item) for item in operations)  # a slow body
    table = API.read_text().partition("| status | cause |\n|---|---|\n")[2].partition("\n\n")[0]
    assert {int(text) for row in table.splitlines() for text in row.split("|")[1].split(",")} == {*STATUSES}


def test_refusals_of_adapters_are_in_the_contract(described: dict[str, Any]) -> None:
    """A name in use is a 409, and a key that may not load adapters gets a 403; other routes have no 409."""
    posted = {name: {*found["post"]["responses"]} for name, found in described["paths"].items() if "post" in found}
    assert [name for name, statuses in posted.items() if "409" in statuses] == ["/v1/load_lora_adapter"]
    assert "403" in posted["/v1/load_lora_adapter"]


def test_references_lead_somewhere(described: dict[str, Any]) -> None:
    references = [node["$ref"] for node in nodes(described) if isinstance(node.get("$ref"), str)]
    assert {name.removeprefix("#/components/schemas/") for name in references} <= set(
        described["components"]["schemas"]
    )


@pytest.mark.parametrize("route", [each for each in POSTED if each.body_type != FORM], ids=lambda route: route.path)
def test_examples_of_requests_are_answered(live: Live, route: Route, schemas: dict[str, Any]) -> None:
    request = {"tokens": [104]} if route.path == "/detokenize" else route.request  # the fake knows no others
    of_models = route.path in ("/v1/models/load", "/v1/models/unload")
    request = request and {**request, **({"model": "fake"} if "model" in request and not of_models else {})}
    if route.path == "/v1/unload_lora_adapter":
        live.post("/v1/load_lora_adapter", {"lora_name": "sql", "lora_path": "sql"})
    path = route.path
    if "{id}" in path:
        path = path.replace("{id}", live.post("/v1/conversations", {}).json()["id"])
    response = live.post(path, request)
    assert response.status_code == 200, response.text
    (item,) = get_args(route.answer) or (route.answer,)
    for answer in response.json() if item is not route.answer else [response.json()]:
        validate(answer, item.__name__, schemas)


@pytest.mark.parametrize(
    ("path", "answer", "bodies"),
    [
        (
            "/v1/completions",
            "Completion",
            [
                {"prompt": "hi", "logprobs": 3, "echo": True, "n": 2, "best_of": 3},
                {"prompt": "hi", "logprobs": 3, "max_tokens": 0, "echo": True},
                {"prompt": ["hi", "you"], "prompt_logprobs": 2, "return_token_ids": True},
                {"prompt": "hi", "timeout": 1e-9},
            ],
        ),
        (
            "/v1/chat/completions",
            "ChatCompletion",
            [
                {"logprobs": True, "top_logprobs": 2, "n": 2},
                {"prompt_logprobs": 2, "return_token_ids": True},
                {"timeout": 1e-9, "return_token_ids": True, "prompt_logprobs": 1},
                {"tools": TOOLS},
            ],
        ),
        (
            "/v1/responses",
            "ResponseAnswer",
            [
                {"temperature": 0, "top_p": 0.5, "instructions": "be"},
                {"tools": [{"type": "function", "name": "f"}], "tool_choice": {"type": "function", "name": "f"}},
                {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"type": "object"}}}},
                {"background": True},
            ],
        ),
        (
            "/v1/messages",
            "MessageAnswer",
            [{"stop_sequences": list("abcdefghijklmnop")}, {"tools": [{"name": "f", "input_schema": {}}]}],
        ),
    ],
)
def test_every_kind_of_answer_is_as_its_type_says(
    live: Live, path: str, answer: str, bodies: list[dict[str, Any]], schemas: dict[str, Any]
) -> None:
    prompts: dict[str, Any] = {
        "/v1/completions": {"max_tokens": 8},
        "/v1/responses": {"input": "hi", "max_output_tokens": 8},
    }
    for body in bodies:
        response = live.post(path, prompts.get(path, {"messages": HELLO, "max_tokens": 8}) | body)
        assert response.status_code == 200, response.text
        validate(response.json(), answer, schemas)


def test_tokens_probes_models_and_errors_are_as_their_types_say(schemas: dict[str, Any]) -> None:
    with running(api_keys=("k",)) as live:
        key = {"authorization": "Bearer k"}
        for body in ({"content": "hé", "with_pieces": True}, {"prompt": "a", "return_token_strs": True}):
            validate(live.post("/tokenize", body, headers=key).json(), "Tokenized", schemas)
        for route in ROUTES:
            if route.body is None and route.answer is not str and not route.endless:
                path = route.path.replace("{name:path}", "fake")
                response = live.http.request(route.methods[0], path, headers=key)
                kind = route.answer if response.is_success else route.policy.dialect.answer
                validate(response.json(), kind.__name__, schemas)
        for path, name in (("/v1/completions", "OpenAIError"), ("/v1/messages", "AnthropicError")):
            for headers in ({}, key):
                validate(live.post(path, {"thread": 1}, headers=headers).json(), name, schemas)
    with running(model="large", wait="loading") as live:
        for path, name in (("/ready", "Readiness"), ("/health", "HealthStatus"), ("/version", "Version")):
            validate(live.http.get(path).json(), name, schemas)


def test_calls_are_as_their_types_say(schemas: dict[str, Any]) -> None:
    """The model repeats its prompt, which is a call as it is written for it."""
    call = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'
    message = [{"role": "user", "content": call}]
    with running(model="recite") as live:
        chat = live.post("/v1/chat/completions", {"messages": message, "tools": TOOLS}).json()
        assert chat["choices"][0]["message"]["tool_calls"]
        validate(chat, "ChatCompletion", schemas)
        tool = {"type": "function", "name": "f"}
        response = live.post("/v1/responses", {"input": message, "tools": [tool]}).json()
        assert response["output"][0]["type"] == "function_call"
        validate(response, "ResponseAnswer", schemas)
        tool = {"name": "f", "input_schema": {}}
        answer = live.post("/v1/messages", {"messages": message, "tools": [tool], "max_tokens": 100}).json()
        assert answer["content"][0]["type"] == "tool_use"
        validate(answer, "MessageAnswer", schemas)
