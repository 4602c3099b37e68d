"""What Ollama's API says of models, with fake ones and with the embedded one; and what it may not do to them."""

from datetime import datetime
from pathlib import Path

import pytest

from model.checkpoint.embedded import EMBEDDED
from model.checkpoint.resolve import resolve
from service.api.ollama.models import API
from service.errors.dialects import OLLAMA
from service.errors.errors import ModelNotFound
from tests.service.api.ollama.sent import error_of
from tests.service.hosting.serving import LATE, serving
from tests.service.live import Live, running

NOTHING = {"families": [], **dict.fromkeys(("parent_model", "format", "family", "parameter_size"), "")}
NOTHING |= {"quantization_level": ""}


def test_lists_and_version(live: Live) -> None:
    listed = live.http.get("/api/tags").json()["models"]
    assert [(item["name"], item["model"]) for item in listed] == [("fake", "fake"), ("org/alias", "org/alias")]
    assert len({item["digest"] for item in listed}) == 2
    assert all(len(item["digest"]) == 64 and item["details"] == NOTHING for item in listed)
    (loaded,) = live.http.get("/api/ps").json()["models"]
    assert (loaded["name"], loaded["context_length"], loaded["size_vram"]) == ("fake", 512, 0)
    assert datetime.fromisoformat(loaded["expires_at"]).year == 9999
    assert live.http.get("/api/version").json()["version"] == API
    assert tuple(map(int, API.split("."))) >= (0, 13, 4), "Codex refuses an older one"


def test_show(live: Live) -> None:
    for body in ({"model": "fake"}, {"name": "org/alias:latest", "verbose": True}):
        shown = live.post("/api/show", body).json()
        assert shown["template"] == "{{ messages }}"
        assert shown["parameters"] == "num_ctx 512"
        assert shown["capabilities"] == ["completion", "tools", "embedding"]
        family = shown["model_info"]["general.architecture"]
        assert shown["model_info"][f"{family}.context_length"] == 512
    with running(sampling={"temperature": 0.3, "repetition_penalty": 1.1}, chat=False) as plain:
        shown = plain.post("/api/show", {"model": "fake"}).json()
        assert shown["parameters"].splitlines() == ["num_ctx 512", "temperature 0.3", "repeat_penalty 1.1"]
        assert (shown["template"], shown["capabilities"]) == ("", ["completion", "embedding"])
    assert error_of(live, "/api/show", {}) == "model is required"
    assert "does not exist here" in error_of(live, "/api/show", {"model": "no"}, 404)
    assert "unknown field 'frobnicate'" in error_of(live, "/api/show", {"model": "fake", "frobnicate": 1})


def test_the_facts_of_files_loaded_or_not(tmp_path: Path) -> None:
    source = resolve(EMBEDDED)
    with running(source=source) as live:
        (fake, _) = live.http.get("/api/tags").json()["models"]
        assert fake["size"] == source.stat().st_size
        assert fake["details"] == NOTHING | {
            "format": "gguf",
            "family": "llama",
            "families": ["llama"],
            "parameter_size": "134.52M",
        }
    with serving(tmp_path, {"a": {}, "b": {"source": EMBEDDED, **LATE}}) as live:
        listed = {item["name"]: item for item in live.http.get("/api/tags").json()["models"]}
        assert listed["b"]["details"] == NOTHING
        assert [item["name"] for item in live.http.get("/api/ps").json()["models"]] == ["a"]
        shown = live.post("/api/show", {"model": "b"}).json()
        assert shown["model_info"]["llama.context_length"] == 8192
        assert shown["model_info"]["general.parameter_count"] == 134_515_008
        assert shown["capabilities"] == ["completion", "tools", "embedding"]
        assert live.http.get("/v1/models/b").json()["state"] == "unloaded", "nobody has loaded it"


def test_files_that_cannot_be_shown(tmp_path: Path) -> None:
    """The reason has no folders of the server."""
    entries = {
        "a": {},
        "b": {"source": str(tmp_path / "nothing"), **LATE},
        "c": {"source": EMBEDDED, "reasoning_style": "tokens", **LATE},
    }
    with serving(tmp_path, entries) as live:
        reason = error_of(live, "/api/show", {"model": "b"}, 503)
        assert "the files of b cannot be read: " in reason
        assert str(tmp_path) not in reason
        assert "--reasoning-style tokens needs" in error_of(live, "/api/show", {"model": "c"}, 503)


@pytest.mark.parametrize("name", ["pull", "push", "create", "copy", "delete"])
def test_models_are_not_changed_over_http(live: Live, name: str) -> None:
    method = "DELETE" if name == "delete" else "POST"
    response = live.http.request(method, f"/api/{name}", json={"model": "fake", "stream": False})
    assert response.status_code == 403
    assert f"/api/{name} is not allowed" in response.json()["error"]
    if name == "pull":
        assert "noria pull NAME" in response.json()["error"]


def test_errors_are_texts_and_keys_hold(tmp_path: Path) -> None:
    assert OLLAMA.write(ModelNotFound("a", ("b",))) == {"error": 'the model "a" does not exist here; served: b'}
    with running(api_keys=("k",)) as live:
        response = live.http.get("/api/tags")
        assert response.status_code == 401
        assert "Bearer" in response.json()["error"]
        assert live.http.get("/api/tags", headers={"authorization": "Bearer k"}).status_code == 200
        assert live.http.post("/api/chat", content="a", headers={"authorization": "Bearer k"}).status_code == 400
