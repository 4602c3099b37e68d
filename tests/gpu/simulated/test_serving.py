"""A whole server on each kind of card: it starts, and answers every kind of request, and many at once."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.e2e.server import MODEL, LiveServer, serving
from tests.gpu.simulated.card import Card
from tests.model.checkpoint.adapter_files import save_peft

pytestmark = pytest.mark.simulated

CARDS = ("8.0", "9.0", "10.0")
ONE = "33"
"""The token "1" of the embedded model. It also begins a JSON integer."""
COMPLETIONS, CHAT, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
ASKED = {"messages": [{"role": "user", "content": "Count."}], "max_tokens": 6}
INTEGER = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}, "strict": True}}
COMPLETED: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "seed": {"seed": 3},
    "top_p, top_k, min_p": {"top_p": 0.9, "top_k": 20, "min_p": 0.1},
    "three choices": {"n": 3},
    "logprobs": {"logprobs": 3},
    "prompt logprobs": {"prompt_logprobs": 2},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.4},
    "bad words": {"bad_words": ["2 3", "4"]},
    "minimum of tokens": {"min_tokens": 3},
    "logit bias": {"logit_bias": {"100": 2.0}},
    "allowed tokens": {"allowed_token_ids": [int(ONE), 40]},
}


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An adapter of the first query projection."""
    folder = tmp_path_factory.mktemp("adapters") / "query"
    weights = {
        "lm_head.weight": torch.empty(49152, 576),
        "model.layers.0.self_attn.q_proj.weight": torch.empty(576, 576),
    }
    save_peft(folder, weights, seed=0, lora_alpha=4, targets=("q_proj",), r=4)
    return folder


@pytest.fixture(scope="module", params=CARDS)
def card(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Card:
    return Card(request.param, tmp_path_factory.mktemp("card"))


@pytest.fixture(scope="module")
def server(card: Card, adapter: Path) -> Iterator[LiveServer]:
    with serving("--device", "cuda", "--lora", f"query={adapter}", **card.variables(), SIM_TOKEN=ONE) as started:
        yield started
    assert not card.refusals


def ask(server: LiveServer, path: str, **body: Any) -> Any:
    response = server.http.post(path, json={"model": MODEL, **body})
    assert response.status_code == 200, f"{body}: {response.text}\n{server.log}"
    return response.json()


def test_it_says_what_it_runs_on(server: LiveServer, card: Card) -> None:
    assert f'device="Simulated GPU sm_{card.capability.replace(".", "")}"' in server.log
    assert "attention=triton" in server.log
    assert "warning" not in server.log


@pytest.mark.parametrize("name", COMPLETED)
def test_completions(server: LiveServer, name: str) -> None:
    body = COMPLETED[name]
    choices = ask(server, COMPLETIONS, prompt="Count to nine:", max_tokens=6, **body)["choices"]
    assert [choice["text"] for choice in choices] == ["111111"] * body.get("n", 1)
    assert all(choice["finish_reason"] == "length" for choice in choices)


def test_a_chat(server: LiveServer) -> None:
    assert ask(server, CHAT, **ASKED)["choices"][0]["message"]["content"] == "111111"


def test_a_stream(server: LiveServer) -> None:
    chunks = server.openai.chat.completions.create(model=MODEL, stream=True, **ASKED)  # type: ignore[call-overload]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "111111"


def test_a_schema(server: LiveServer) -> None:
    assert ask(server, CHAT, **ASKED, response_format=INTEGER)["choices"][0]["message"]["content"] == "111111"


def test_a_stop(server: LiveServer) -> None:
    (choice,) = ask(server, COMPLETIONS, prompt="Count:", max_tokens=6, stop=["11"])["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")


def test_an_adapter(server: LiveServer) -> None:
    assert ask(server, COMPLETIONS, prompt="Count:", max_tokens=6, model="query")["choices"][0]["text"] == "111111"


def test_an_embedding(server: LiveServer) -> None:
    assert len(ask(server, EMBEDDINGS, input="Count.")["data"][0]["embedding"]) == 576


def test_a_long_prompt(server: LiveServer) -> None:
    found = ask(server, COMPLETIONS, prompt="one two three four " * 300, max_tokens=6)
    assert found["usage"]["prompt_tokens"] > 1000
    assert found["choices"][0]["text"] == "111111"


def test_sixty_at_once(server: LiveServer) -> None:
    with ThreadPoolExecutor(60) as pool:
        asked = [pool.submit(ask, server, COMPLETIONS, prompt=f"Count {n}:", max_tokens=3 + n) for n in range(60)]
        assert [future.result()["choices"][0]["text"] for future in asked] == ["1" * (3 + n) for n in range(60)]
