"""`POST /api/embed` and `/api/embeddings`."""

from tests.service.api.ollama.sent import error_of
from tests.service.live import Live

EMBED = "/api/embed"


def test_embeddings_are_those_of_the_other_api(live: Live) -> None:
    texts = ["a", "bc"]
    theirs = [item["embedding"] for item in live.post("/v1/embeddings", {"input": texts}).json()["data"]]
    ours = live.post(EMBED, {"model": "fake:latest", "input": texts}).json()
    assert ours.pop("total_duration") >= ours.pop("load_duration") >= 0
    assert ours == {"model": "fake:latest", "embeddings": theirs, "prompt_eval_count": 3}
    assert live.post(EMBED, {"input": "bc"}).json()["embeddings"] == theirs[1:]
    assert live.post("/api/embeddings", {"prompt": "a"}).json() == {"embedding": theirs[0]}


def test_a_long_text_is_cut_unless_the_client_says_no(live: Live) -> None:
    context = live.post(EMBED, {"input": "a" * 512}).json()
    assert live.post(EMBED, {"input": "a" * 9000}).json()["embeddings"] == context["embeddings"]
    assert "512" in error_of(live, EMBED, {"input": "a" * 9000, "truncate": False})


def test_nothing_to_embed_loads_the_model(live: Live) -> None:
    for nothing in ("", []):
        assert live.post(EMBED, {"input": nothing}).json()["embeddings"] == []
    assert live.post("/api/embeddings", {}).json() == {"embedding": []}


def test_what_is_refused_or_named(live: Live) -> None:
    assert "dimensions must be 3" in error_of(live, EMBED, {"input": "a", "dimensions": 2})
    assert "input is required" in error_of(live, EMBED, {"model": "fake"})
    assert "does not exist" in error_of(live, EMBED, {"model": "no", "input": "a"}, 404)
    response = live.post(EMBED, {"input": "a", "options": {"temperature": 1}, "dimensions": 3})
    assert (response.status_code, response.headers["x-noria-ignored"]) == (200, "options")
