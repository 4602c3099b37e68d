"""Who reuses whose cached prompts: --cache-isolation, and the keys of a server."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.service.live import Live, running

TEXT = "a secret, as long as two pages of sixteen tokens, and some more of it"
USER = {"role": "user", "content": TEXT}
ENDPOINTS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": f"completed: {TEXT}", "max_tokens": 4, "logprobs": 1},
    "/v1/chat/completions": {"messages": [{**USER, "content": f"chat: {TEXT}"}], "max_tokens": 4, "logprobs": True},
    "/v1/responses": {"input": f"response: {TEXT}", "max_output_tokens": 16},
    "/v1/messages": {"model": "fake", "messages": [{**USER, "content": f"message: {TEXT}"}], "max_tokens": 4},
    "/v1/embeddings": {"input": f"embedded: {TEXT}", "pooling": "last"},
}
ANSWER = {"/v1/responses": "output", "/v1/messages": "content", "/v1/embeddings": "data"}


def asking(live: Live, path: str, body: dict[str, Any]) -> Callable[..., tuple[Any, int]]:
    """A function that sends the body with a key, and returns the answer and the tokens that came from the cache."""

    def ask(key: str | None, **more: Any) -> tuple[Any, int]:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        live.http.headers.update(headers)  # those of live.metric, too
        before = live.metric("noria_prefix_cache_hit_tokens_total")
        response = live.post(path, {**body, **more})
        assert response.status_code == 200, response.text
        return response.json()[ANSWER.get(path, "choices")], int(
            live.metric("noria_prefix_cache_hit_tokens_total") - before
        )

    return ask


def without_ids(answer: Any) -> Any:
    return [{name: value for name, value in part.items() if name != "id"} for part in answer]


@pytest.mark.parametrize(("isolation", "shared"), [({}, 0), ({"cache_isolation": "none"}, 48)], ids=str)
def test_a_key_reuses_its_own_prompts_and_only_its_own(isolation: dict[str, str], shared: int) -> None:
    with running(api_keys=("first", "second"), **isolation) as live:
        for path, body in ENDPOINTS.items():
            ask = asking(live, path, body)
            answers, cached = zip(*[ask(key) for key in ("first", "second", "first", "second")], strict=True)
            assert [min(48, n) for n in cached] == [0, shared, 48, 48], path
            assert all(without_ids(answer) == without_ids(answers[0]) for answer in answers)


def test_salts_divide_the_prompts_of_a_key() -> None:
    with running(api_keys=("first", "second")) as live:
        ask = asking(live, "/v1/completions", ENDPOINTS["/v1/completions"])
        asked = [("first", "a"), ("first", "b"), ("second", "a"), ("first", "a"), ("second", "a")]
        assert [min(48, ask(key, cache_salt=salt)[1]) for key, salt in asked] == [0, 0, 0, 48, 48]


def test_a_key_keeps_its_own_when_the_file_changes_and_gets_nobody_elses(tmp_path: Path) -> None:
    """Plain keys are named by their places in the file: when the first goes, the second has its name."""
    file = tmp_path / "keys"
    file.write_text("first\nsecond\n")
    with running(api_key_file=file) as live:
        ask = asking(live, "/v1/completions", ENDPOINTS["/v1/completions"])
        assert ask("first")[1] == 0
        file.write_text("second\nfirst\n")
        live.keys.reload()
        assert ask("second")[1] == 0
        assert ask("first")[1] >= 48
