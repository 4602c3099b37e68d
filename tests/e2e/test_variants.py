"""Tokens and log probabilities have the same bits with every variant of the compiled kernels."""

from pathlib import Path
from typing import Any

import pytest

from model.kernels.cpu import check, native
from model.loading import create
from model.machine.host import KERNELS
from tests.e2e.conftest import Load
from tests.e2e.served import COUNTING, GREEDY, SERVED, prompt
from tests.e2e.without_server import Answer, serve
from tests.model.checkpoint.quantized_files import VOCAB, save

REQUESTS = [(prompt(0, 150), GREEDY), (prompt(1, 37), COUNTING), (prompt(2, 1), GREEDY)]
VARIANTS = [name for name in native.available() if name not in check.SEPARATE]
"""Those that fuse multiplications and additions."""


@pytest.mark.skipif(len(VARIANTS) < 2, reason="needs two variants that promise equal bits")
@pytest.mark.parametrize("options", SERVED, ids=lambda options: "-".join(map(str, options.values())))
def test_answers_do_not_depend_on_the_variant(
    load_short: Load, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: dict[str, list[Answer]] = {}
    for name in VARIANTS:
        monkeypatch.setenv(KERNELS, name)
        runner = load_short(**options)
        assert runner.info.description["kernels"] == f"native {name}"
        answers[name], _ = serve(runner, REQUESTS)
    first = answers[VARIANTS[0]]
    assert [name for name, found in answers.items() if found != first] == []


@pytest.mark.skipif(len(VARIANTS) < 2, reason="needs two variants that promise equal bits")
@pytest.mark.parametrize("form", ["ct nvfp4", "ct mxfp4"])
def test_answers_of_4_bit_floats_do_not_depend_on_the_variant(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(form, tmp_path)
    requests = [([token % VOCAB for token in tokens[:80]], params) for tokens, params in REQUESTS]
    answers: dict[str, list[Answer]] = {}
    for name in VARIANTS:
        monkeypatch.setenv(KERNELS, name)
        runner = create(lambda stage, done: None, model=str(tmp_path), device="cpu", cache_memory=2**22)
        answers[name], _ = serve(runner, requests)
    first = answers[VARIANTS[0]]
    assert [name for name, found in answers.items() if found != first] == []
