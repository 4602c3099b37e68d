"""The promises of test_promises.py for a model with latent attention: no bit depends on how a request is served."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model.kernels.cpu.records import FORMATS
from model.loading import create
from model.step.runner import ModelRunner
from service.engine.scheduling.scheduler import Scheduler
from tests.e2e.served import GREEDY, SEEDED
from tests.e2e.storing import Engine
from tests.e2e.without_server import Answer, serve, serve_with
from tests.model.network import latent_fp4
from tests.model.network.latent_models import SHAPE, mistral4, save_native

Load = Callable[..., ModelRunner]
CACHE_DIM = 64 + 8


def prompt(number: int, length: int) -> list[int]:
    return [3 + (79 * number + 31 * i * i) % (SHAPE["vocab_size"] - 3) for i in range(length)]


MINE = [(prompt(0, 90), GREEDY), (prompt(1, 37), SEEDED)]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Load:
    model = mistral4(kv_lora_rank=64, v_head_dim=32, max_position_embeddings=256)
    with torch.no_grad():  # the last token decides most of the next: answers repeat themselves, as drafts need it
        for name, weight in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                weight *= 0.02
        directories = {"": save_native(model, tmp_path_factory.mktemp("latent"))}
        latent_fp4.round_experts(model)
        directories["nvfp4"] = latent_fp4.save_native(model, tmp_path_factory.mktemp("nvfp4"))

    def made(experts: str = "", **options: Any) -> ModelRunner:
        chosen = {"max_model_len": 256, "cache_memory": 16 * 2**20, "device": "cpu", **options}
        return create(lambda stage, done: None, model=str(directories[experts]), **chosen)

    return made


SERVED = [
    {"quantize": "int8"},
    {"quantize": "int4"},
    {"dtype": "bfloat16"},
    {"quantize": "int8", "kv_dtype": "int8"},
    {"quantize": "int8", "experts": "nvfp4"},
]


@pytest.fixture(scope="module", params=SERVED, ids=lambda options: "-".join(options.values()))
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.fixture(scope="module")
def runner(options: dict[str, Any], load: Load) -> ModelRunner:
    made = load(**options)
    assert made.info.description["attention"] == "paged"
    assert "arithmetic" in made.info.description, "one call computes a step"
    assert not options.get("experts") or "nvfp4" in formats(made)
    return made


def formats(runner: ModelRunner) -> set[str]:
    """In which the kernels have the weights of experts."""
    sparse: Any = runner.head.model.layers[-1].feed_forward
    return {FORMATS[part.packed.record.format] for expert in sparse.experts for part in (expert.w13, expert.w2)}


@pytest.fixture(scope="module")
def alone(runner: ModelRunner) -> list[Answer]:
    return [serve(runner, [item])[0][0] for item in MINE]


def test_packed_with_others(runner: ModelRunner, alone: list[Answer]) -> None:
    others = [(prompt(2 + i, 3 + 9 * i), GREEDY) for i in range(16)]
    answers, _ = serve(runner, [*others[:8], *MINE, *others[8:]])
    assert answers[8:10] == alone


@pytest.mark.each
@pytest.mark.parametrize("max_step_tokens", [1, 7, 50])
def test_in_other_chunks(runner: ModelRunner, alone: list[Answer], max_step_tokens: int) -> None:
    assert serve(runner, MINE, max_step_tokens)[0] == alone


def test_from_cached_pages(runner: ModelRunner, alone: list[Answer]) -> None:
    scheduler = Scheduler(runner.info, max_sequences=8, max_step_tokens=512)
    others = [(tokens[:n] + prompt(9, n), params) for n, (tokens, params) in zip((51, 20), MINE, strict=True)]
    serve_with(scheduler, runner, others)
    assert serve_with(scheduler, runner, MINE) == alone
    assert serve_with(scheduler, runner, MINE) == alone
    assert scheduler.stats().hit_tokens >= 51 + 20


def test_from_pages_on_disk(options: dict[str, Any], runner: ModelRunner, load: Load, tmp_path: Path) -> None:
    """In another engine. A file has a page of 32 keys in each layer, between its head and its hash."""
    stored = {**options, "prefix_store": str(tmp_path)}
    first = Engine(load(**stored))
    alone = [first.serve([item], cache_salt="alone")[0][0] for item in MINE]
    assert alone == [serve(runner, [item])[0][0] for item in MINE]
    first.serve(MINE)
    first.end()
    sizes = {path.stat().st_size for path in tmp_path.rglob("*.page")}
    assert sizes == {320 + 32 * SHAPE["num_hidden_layers"] * key_bytes(runner) + 32}
    second = Engine(load(**stored, max_step_tokens=64, max_sequences=4))
    assert second.serve(MINE) == (alone, 2 * 32 + 32)


def key_bytes(runner: ModelRunner) -> int:
    """Of a position and layer: 72 values, in int8 padded to 80 and with a scale."""
    return CACHE_DIM * 2 if runner.info.description["kv_dtype"] == "bfloat16" else 80 + 4


def test_with_speculation(runner: ModelRunner) -> None:
    repeating = prompt(5, 12) * 4
    plain = [(repeating, GREEDY), (repeating, SEEDED), *MINE, *((prompt(n, 9) * 6, GREEDY) for n in range(6, 10))]
    plain = [(tokens, replace(params, max_tokens=80, prompt_lookup_num_tokens=0)) for tokens, params in plain]
    guessing = [(tokens, replace(params, prompt_lookup_num_tokens=8)) for tokens, params in plain]
    alone = [serve(runner, [item])[0][0] for item in plain]
    answers, scheduler = serve(runner, guessing, max_step_tokens=50)
    assert answers == alone
    assert scheduler.stats().drafts("drafted") > 8


def test_after_preemption(options: dict[str, Any], runner: ModelRunner, load: Load) -> None:
    """There are five pages of 32 positions, with one key in each layer."""
    cache = 5 * 32 * SHAPE["num_hidden_layers"] * key_bytes(runner)
    small = load(**{**options, "max_model_len": 128, "cache_memory": cache, "prompt_lookup": "off"})
    requests = [(prompt(20 + i, 52), replace(GREEDY, max_tokens=16, ignore_eos=True)) for i in range(2)]
    requests.append((MINE[1][0], replace(SEEDED, ignore_eos=True)))
    answers, scheduler = serve(small, requests)
    assert scheduler.stats().preemptions > 0
    assert answers == [serve(runner, [item])[0][0] for item in requests]
