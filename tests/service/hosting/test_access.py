"""Keys that may use some of several models."""

import json
from pathlib import Path
from typing import Any

from tests.service.hosting.serving import serving, states
from tests.service.live import USER

COMPLETIONS = "/v1/completions"
LOAD = "/v1/models/load"
UNLOAD = "/v1/models/unload"


def test_keys_see_and_use_only_their_models(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys: list[dict[str, Any]] = [
        {"name": "one", "key": "1", "models": ["small"]},
        {"name": "all", "key": "2", "loads_models": True},
        {"name": "none", "key": "3", "models": ["gone"]},
    ]
    path.write_text(json.dumps({"keys": keys}))
    entries = {"a": {}, "b": {"aliases": ["small"]}}
    one, all_, none = ({"authorization": f"Bearer {number}"} for number in "123")
    with serving(tmp_path, entries, api_key_file=path) as live:
        assert set(states(live, **one)) == {"b", "small"}
        assert set(states(live, **all_)) == {"a", "b", "small"}
        body = {"prompt": "hi", "max_tokens": 3}
        for name in ("a", "nobody"):
            for found in (
                live.post(COMPLETIONS, {**body, "model": name}, headers=one),
                live.post("/v1/chat/completions", {"messages": USER, "model": name}, headers=one),
                live.post("/tokenize", {"prompt": "hi", "model": name}, headers=one),
                live.post(LOAD, {"model": name}, headers=one),
                live.http.get(f"/v1/models/{name}", headers=one),
                live.http.get("/v1/engine/events", params={"model": name}, headers=one),
                live.http.get("/tokenizer_info", params={"model": name}, headers=one),
            ):
                message = f'the model "{name}" does not exist here; served: b, small'
                error = found.json()["error"]
                assert (found.status_code, error["code"], error["message"]) == (404, "model_not_found", message)
        assert live.post(COMPLETIONS, body, headers=one).json()["model"] == "b", "the first that it may use"
        assert live.post(COMPLETIONS, body, headers=all_).json()["model"] == "a"
        for path_, sent in ((LOAD, {"model": "b"}), (UNLOAD, {"model": "b"})):
            response = live.post(path_, sent, headers=one)
            assert (response.status_code, response.json()["error"]["code"]) == (403, "not_allowed")
        assert live.post(UNLOAD, {"model": "b"}, headers=all_).status_code == 200
        found = live.post(COMPLETIONS, body, headers=none)
        assert (found.status_code, found.json()["error"]["code"]) == (404, "model_not_found")
        listed = live.http.get("/v1/models", headers=none)
        assert (listed.status_code, listed.json()["data"], listed.json()["first_id"]) == (200, [], None)
