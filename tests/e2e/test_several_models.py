"""Several real models behind one port: each answers as it does alone, to the bit, whatever the others do."""

import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MixtralConfig, MixtralForCausalLM

from tests.e2e.server import LiveServer, serving

Answer = Mapping[str, Any]
CACHE = "64MiB"
PROMPTS = ("The capital of France is", "One, two, three, four, five, six, seven,", "x" * 300, "def fibonacci(n):\n")
SAMPLINGS: Sequence[Mapping[str, Any]] = (
    {"temperature": 0},
    {"temperature": 0.8, "top_p": 0.95, "seed": 7},
    {"temperature": 1.0, "seed": 8, "frequency_penalty": 0.2},
)
REQUESTS = [
    {"prompt": prompt, "max_tokens": 24, "logprobs": 3, **sampling} for prompt in PROMPTS for sampling in SAMPLINGS
]


@pytest.fixture(scope="module")
def mixtral(embedded_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random network of experts, with the tokenizer of the embedded model."""
    torch.manual_seed(5)
    config = MixtralConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=49152,
        max_position_embeddings=512,
        initializer_range=0.2,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=None,
        bos_token_id=1,
        eos_token_id=2,
    )
    directory = tmp_path_factory.mktemp("mixtral")
    MixtralForCausalLM(config).save_pretrained(directory)
    for file in embedded_files.glob("*token*.json"):
        shutil.copy(file, directory)
    return directory


@pytest.fixture(scope="module")
def models(mixtral: Path, short_model: Path) -> dict[str, tuple[str, int]]:
    """Source and longest sequence of each model, by name."""
    return {"long": (str(short_model), 1024), "short": (str(short_model), 400), "experts": (str(mixtral), 512)}


@pytest.fixture(scope="module")
def alone(models: Mapping[str, tuple[str, int]]) -> dict[str, list[Answer]]:
    """The answers of a server of its own for each network, whatever its longest sequence, one request at a time."""
    found = {}
    for name in ("short", "experts"):
        source, length = models[name]
        flags = ("--served-model-name", name, "--max-model-len", str(length), "--cache-memory", CACHE)
        with serving(source, *flags) as server:
            found[name] = [answer(server, name, request) for request in REQUESTS]
    return {"long": found["short"], **found}


def file_of(models: Mapping[str, tuple[str, int]], folder: Path, load: str) -> str:
    path = folder / "models.toml"
    path.write_text(
        "\n".join(
            f'[[models]]\nname = "{name}"\nsource = "{source}"\nload = "{load}"\n'
            f'max-model-len = {length}\ncache-memory = "{CACHE}"\n'
            for name, (source, length) in models.items()
        )
    )
    return str(path)


@pytest.fixture(scope="module")
def together(models: Mapping[str, tuple[str, int]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with serving("--models", file_of(models, tmp_path_factory.mktemp("together"), "start")) as server:
        yield server


def answer(server: LiveServer, model: str, request: Mapping[str, Any]) -> Answer:
    """What the model decides: text, the end, and log probabilities."""
    response = server.http.post("/v1/completions", json={"model": model, **request})
    assert response.status_code == 200, response.text
    reply = response.json()
    assert reply["model"] == model
    return {name: reply["choices"][0][name] for name in ("text", "finish_reason", "logprobs")}


def test_answers_under_load_are_those_of_each_model_alone(
    models: Mapping[str, tuple[str, int]], alone: Mapping[str, list[Answer]], together: LiveServer
) -> None:
    orders = [(name, number) for name in models for number in range(len(REQUESTS))] * 2
    random.Random(3).shuffle(orders)
    cards = {card["id"]: card for card in together.http.get("/v1/models").json()["data"]}
    assert {name: (card["state"], card["max_model_len"]) for name, card in cards.items()} == {
        name: ("ready", length) for name, (_, length) in models.items()
    }
    with ThreadPoolExecutor(24) as pool:
        found = list(pool.map(lambda order: answer(together, order[0], REQUESTS[order[1]]), orders))
    for (name, number), reply in zip(orders, found, strict=True):
        assert reply == alone[name][number], (name, REQUESTS[number])
    for name in models:
        assert together.metric("noria_requests_total", model=name, outcome="error") == 0
        assert together.metric("noria_generated_tokens_total", model=name) > len(REQUESTS)
    assert alone["short"] != alone["experts"]


@pytest.fixture(scope="module")
def needs(together: LiveServer) -> int:
    """Bytes that all models take."""
    return sum(card["memory_bytes"] for card in together.http.get("/v1/models").json()["data"])


@pytest.fixture(scope="module")
def in_turn(
    models: Mapping[str, tuple[str, int]], needs: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    """A server whose plans leave memory for two of three, with pages on disk."""
    folder = tmp_path_factory.mktemp("in-turn")
    flags = ("--memory-budget", str(needs - 1), "--prefix-store", str(folder / "pages"))
    with serving("--models", file_of(models, folder, "first-request"), *flags) as server:
        yield server


def test_answers_of_models_that_come_and_go(
    models: Mapping[str, tuple[str, int]], alone: Mapping[str, list[Answer]], in_turn: LiveServer, needs: int
) -> None:
    """Requests for the third one wait until another is idle."""
    orders = [(name, number) for number in range(4) for name in models]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda order: answer(in_turn, order[0], REQUESTS[order[1]]), orders))
    for (name, number), reply in zip(orders, found, strict=True):
        assert reply == alone[name][number], (name, REQUESTS[number])
    assert in_turn.metric("noria_model_unloads_total", reason="memory") > 0
    states = [card["state"] for card in in_turn.http.get("/v1/models").json()["data"]]
    assert states.count("ready") <= 2
    assert in_turn.metric("noria_model_memory_bytes") < needs


def test_pages_on_disk_survive_an_unload(in_turn: LiveServer) -> None:
    body = {"model": "long", "prompt": "The wheel turns. " * 60, "max_tokens": 8, "temperature": 0}

    def ask() -> tuple[str, int]:
        reply = in_turn.http.post("/v1/completions", json=body).raise_for_status().json()
        return reply["choices"][0]["text"], reply["timings"]["cache_disk_n"]

    first, none = ask()
    in_turn.http.post("/v1/models/unload", json={"model": "long"}).raise_for_status()
    again, from_disk = ask()
    assert (again, none) == (first, 0)
    assert from_disk >= 128
