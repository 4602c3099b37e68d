"""Adapters on a real server: many requests over four random PEFT adapters and the base, each as if it were alone.

The base is the first layers of the embedded model in the compiled kernels, which promise bits. Three adapters may be in
memory, so that the fourth is read again and again.
"""

import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.e2e.server import LiveServer, serving
from tests.e2e.short_adapters import save_short
from tests.model.checkpoint.adapter_files import ALL, ATTENTION
from tests.waiting import eventually

KINDS: dict[str, dict[str, Any]] = {
    "attention": {"targets": ATTENTION, "r": 4},
    "all": {"targets": ALL, "r": 8},
    "feed-forward": {"targets": ("gate_proj", "up_proj", "down_proj"), "r": 16},
    "query": {"targets": ("q_proj",), "r": 2, "use_rslora": True},
}
BASE = "base"
MODELS = (BASE, *KINDS)
Answer = tuple[str, list[float]]


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("adapters")
    for seed, (name, about) in enumerate(KINDS.items()):
        save_short(directory / name, seed=seed, **about)
    return directory


@pytest.fixture(scope="module")
def server(short_model: Path, adapters: Path) -> Iterator[LiveServer]:
    given = [flag for name in KINDS for flag in ("--lora", f"{name}={adapters / name}")]
    limits = ("--max-loras", "3", "--max-model-len", "512", "--lora-dir", str(adapters))
    with serving(str(short_model), "--served-model-name", BASE, *given, *limits, paced=True) as live:
        yield live


def ask(server: LiveServer, model: str, prompt: str, n: int = 12, **more: Any) -> dict[str, Any]:
    body = {"model": model, "prompt": prompt, "max_tokens": n, "logprobs": 2, "seed": 5, "ignore_eos": True, **more}
    response = server.http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    return response.json()


def said(reply: dict[str, Any]) -> Answer:
    choice = reply["choices"][0]
    return choice["text"], choice["logprobs"]["token_logprobs"]


def prompt(number: int) -> str:
    return f"Chapter {number}. " + "The wheel turns and the water rises. " * (1 + number % 5)


def test_mixed_requests_are_to_the_bit_what_each_is_alone(server: LiveServer) -> None:
    works = [(MODELS[n % 5], prompt(n // 5), {"temperature": n % 2, "cache_salt": "alone"}) for n in range(16)]
    alone = [said(ask(server, model, text, **more)) for model, text, more in works]
    assert len({text for text, _ in alone[:5]}) == 5, "five models say five things"
    with ThreadPoolExecutor(len(works)) as pool:
        tasks = [pool.submit(ask, server, model, text, **{**more, "cache_salt": "all"}) for model, text, more in works]
        assert [said(task.result()) for task in tasks] == alone
    server.wait_idle()
    assert server.metric("noria_lora_requests_total", adapter="all", outcome="length") == 6


def test_the_prefix_cache_is_apart(server: LiveServer) -> None:
    text = "A noria is a machine for lifting water into an aqueduct. " * 6
    answers, cached = {}, {}
    for turn in range(2):
        for model in MODELS:
            reply = ask(server, model, text)
            cached[model, turn] = reply["usage"]["prompt_tokens_details"]["cached_tokens"]
            assert said(reply) == answers.setdefault(model, said(reply))
    assert [cached[model, 0] for model in MODELS] == [0] * 5
    assert all(cached[model, 1] >= 32 for model in MODELS)


def test_one_is_loaded_and_unloaded_while_others_run(server: LiveServer, adapters: Path) -> None:
    """Its files are those of another adapter, and so are its answers."""
    shutil.copytree(adapters / "attention", adapters / "copy")
    expected = [said(ask(server, model, prompt(8), 40)) for model in ("attention", BASE, "all")]
    with ThreadPoolExecutor(4) as pool, server.slow():
        others = [pool.submit(ask, server, model, prompt(8), 40) for model in (BASE, "all")]
        assert (
            server.http.post("/v1/load_lora_adapter", json={"lora_name": "copy", "lora_path": "copy"}).status_code
            == 200
        )
        mine = pool.submit(ask, server, "copy", prompt(8), 40)
        eventually(lambda: server.metric("noria_lora_requests_running", adapter="copy") == 1, "it runs")
        assert server.http.post("/v1/unload_lora_adapter", json={"lora_name": "copy"}).status_code == 200
        assert [said(task.result()) for task in (mine, *others)] == expected
    refused = server.http.post("/v1/completions", json={"model": "copy", "prompt": "x"})
    assert refused.status_code == 404


def test_a_wrong_base_is_refused_by_the_tensors_name(server: LiveServer, adapters: Path) -> None:
    wrong = adapters / "wrong"
    shutil.copytree(adapters / "query", wrong)
    tensors = load_file(wrong / "adapter_model.safetensors")
    save_file(
        {name: tensor[..., :-1].contiguous() for name, tensor in tensors.items()}, wrong / "adapter_model.safetensors"
    )
    reply = server.http.post("/v1/load_lora_adapter", json={"lora_name": "wrong", "lora_path": "wrong"})
    assert reply.status_code == 400
    message = reply.json()["error"]["message"]
    assert "lora_A" in message or "lora_B" in message
    assert str(adapters) not in message


def test_after_the_engines_death_answers_are_the_same(server: LiveServer) -> None:
    expected = [said(ask(server, model, prompt(9), 40)) for model in MODELS]
    with ThreadPoolExecutor(5) as pool:
        with server.slow():
            tasks = [pool.submit(ask, server, model, prompt(9), 40) for model in MODELS]
            eventually(lambda: server.metric("noria_requests_running") >= 2, "they run")
            os.kill(server.engine_pid, signal.SIGKILL)
        assert [said(task.result()) for task in tasks] == expected
    assert server.metric("noria_engine_restarts_total") == 1
