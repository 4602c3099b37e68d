"""Tokens and log probabilities have the same bits with every variant of the compiled kernels."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from model.kernels.cpu import check, native
from model.loading import create
from model.machine.host import KERNELS
from model.step.runner import ModelRunner
from tests.e2e.conftest import Load
from tests.e2e.served import COUNTING, GREEDY, SERVED, prompt
from tests.e2e.without_server import Answer, Request, serve
from tests.model.checkpoint.quantized_files import VOCAB, save
from tests.model.network.latent_models import SHAPE, mistral4, save_native

REQUESTS = [(prompt(0, 150), GREEDY), (prompt(1, 37), COUNTING), (prompt(2, 1), GREEDY)]
VARIANTS = [name for name in native.available() if name not in check.SEPARATE]
"""Those that fuse multiplications and additions."""


OF_FILES = [options for options in SERVED[1:] if "weights" not in options]


def same_in_all(load: Callable[[], ModelRunner], requests: list[Request], monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, list[Answer]] = {}
    for name in VARIANTS:
        monkeypatch.setenv(KERNELS, name)
        runner = load()
        assert runner.info.description["kernels"] == f"native {name}"
        answers[name], _ = serve(runner, requests)
    first = answers[VARIANTS[0]]
    assert [name for name, found in answers.items() if found != first] == []


@pytest.mark.skipif(len(VARIANTS) < 2, reason="needs two variants that promise equal bits")
@pytest.mark.parametrize("options", SERVED, ids=lambda options: "-".join(map(str, options.values())))
def test_answers_do_not_depend_on_the_variant(
    load_short: Load, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    same_in_all(lambda: load_short(**options), REQUESTS, monkeypatch)


def of_words(n: int) -> list[Request]:
    """Shorter requests for a model of n tokens."""
    return [([token % n for token in tokens[:80]], params) for tokens, params in REQUESTS]


@pytest.mark.skipif(len(VARIANTS) < 2, reason="needs two variants that promise equal bits")
def test_answers_of_mxfp4_do_not_depend_on_the_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save("ct mxfp4", tmp_path)
    load = partial(create, lambda stage, done: None, model=str(tmp_path), device="cpu", cache_memory=2**22)
    same_in_all(load, of_words(VOCAB), monkeypatch)


@pytest.mark.skipif(len(VARIANTS) < 2, reason="needs two variants that promise equal bits")
@pytest.mark.parametrize("options", OF_FILES, ids=lambda options: "-".join(map(str, options.values())))
def test_answers_of_latent_attention_do_not_depend_on_the_variant(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_native(mistral4(kv_lora_rank=64, v_head_dim=32), tmp_path)
    options = {"model": str(tmp_path), "device": "cpu", "cache_memory": 2**22, **options}
    same_in_all(partial(create, lambda stage, done: None, **options), of_words(SHAPE["vocab_size"]), monkeypatch)
