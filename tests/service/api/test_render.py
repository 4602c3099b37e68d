"""The token ids that a request would have, as `prompt_token_ids` of its answer says them afterwards."""

from typing import Any

import pytest

from tests.service.live import USER, Live, running

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


@pytest.mark.parametrize("more", [{}, {"n": 2, "stream": True, "seed": 1}, {"truncate_prompt_tokens": 3}])
def test_a_chat_has_the_tokens_that_it_says(live: Live, more: dict[str, Any]) -> None:
    body = {"messages": USER, "max_tokens": 4, **more}
    rendered = live.post(f"{CHAT}/render", body).json()
    answer = live.post(CHAT, {**body, "stream": False, "return_token_ids": True}).json()
    assert rendered == {"token_ids": answer["prompt_token_ids"], "max_tokens": 4}


def test_completions_and_messages(live: Live) -> None:
    prompts = live.post("/v1/completions/render", {"prompt": ["one", "two"]}).json()
    assert [bytes(item["token_ids"]).decode() for item in prompts] == ["one", "two"]
    message = live.post(f"{MESSAGES}/render", {"messages": USER, "max_tokens": 3}).json()
    assert message == {"token_ids": list(b"u:hi;a:"), "max_tokens": 3}
    refusal = live.post(f"{MESSAGES}/render", {"messages": []})
    assert refusal.json()["error"]["type"] == "invalid_request_error"
    info = live.engine.info
    assert info is not None
    page, pages = str(info.page_size), str(max(pool.n_pages for pool in info.pools))
    assert live.metric("noria_cache_config_info", model="fake", block_size=page, num_gpu_blocks=pages) == 1


def test_routers_that_know_only_vllms_names() -> None:
    with running(metrics_names="vllm") as live:
        assert "vllm:cache_config_info" in live.http.get("/metrics").text
        assert "noria_cache_config_info" in live.http.get("/metrics?names=noria").text
