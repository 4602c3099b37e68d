"""404 and 405 name the path or the method that was probably meant."""

import httpx
import pytest

from service.app import ROUTES
from service.errors.hints import OTHERS, Hints
from service.page.routes import PAGES
from tests.service.live import Live, running

CHAT = "/v1/chat/completions"
SERVED = [(route.path, route.methods) for route in (*ROUTES, *PAGES)]
HINTS = Hints(SERVED)


MEANT = {
    CHAT: """/chat/completions /v1/v1/chat/completions /v1/chat/completions/chat/completions /v1/chat/completion
        /v1/chat/completions/ //v1//chat/completions /V1/Chat/Completions /openai/v1/chat/completions
        /v2/chat/completions /v1/chatcompletions""",
    "/v1/completions": "/completion /completions /v1/completion /v1/v1/completions",
    "/v1/messages": "/messages /v1/message /v1/v1/messages",
    "/v1/messages/count_tokens": "/v1/messages/count-tokens",
    "/v1/models": "/models /v1/model /v1 /v1/",
    "/v1/responses": "/v1/response",
    "/api/chat": "/v1/api/chat /api/chat/",
    "/v1/embeddings": "/embeddings",
    "/tokenize": "/v1/tokenize",
    "/health": "/healthz",
    "/docs": "/docs/ /v1/docs /redoc",
    "/openapi.json": "/openapi.yaml",
    "/": "/index.html",
    None: f"/x /wp-login.php /.env /{'a' * 10_000} /{'/' * 10_000}v1/models",
}


@pytest.mark.parametrize("meant", MEANT)
def test_the_path_that_is_meant(meant: str | None) -> None:
    for path in MEANT[meant].split():
        assert HINTS.meant(path) == meant, path


def test_every_path_of_others_leads_to_a_route() -> None:
    assert set(OTHERS.values()) <= {path for path, _ in SERVED}


def test_the_error_names_path_and_method(live: Live) -> None:
    response = live.post("/chat/completions", {})
    assert response.status_code == 404
    message = "there is no route /chat/completions: did you mean POST /v1/chat/completions?"
    assert response.json()["error"] == {
        "message": message,
        "type": "invalid_request_error",
        "param": None,
        "code": "not_found",
    }
    nothing = live.http.get("/wp-login.php").json()["error"]["message"]
    assert nothing == "there is no route /wp-login.php"
    nameless = live.http.get("/v1/models/").json()["error"]["message"]
    assert nameless == "there is no route /v1/models/: did you mean GET /v1/models?"
    wrong = live.http.get(CHAT)
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert wrong.json()["error"]["message"] == "/v1/chat/completions takes POST, not GET"
    two = live.http.put("/v1/requests/a%20b")
    assert (two.status_code, two.headers["allow"]) == (405, "GET, HEAD, DELETE")
    assert two.json()["error"]["message"] == "/v1/requests/a b takes GET, HEAD, DELETE, not PUT"
    assert live.post("/v1/messages/x", {}).json()["type"] == "error"


def test_an_odd_path_stays_on_one_short_line(live: Live) -> None:
    message = live.http.get("/%0a%e2%80%ae" + "x" * 3000).json()["error"]["message"]
    assert message.isprintable()
    assert len(message) < 120


def test_without_a_key_there_is_no_hint() -> None:
    with running(api_keys=("right",)) as live:
        response: httpx.Response = live.http.get("/chat/completions")
        assert response.status_code == 401
        assert "chat" not in response.text
