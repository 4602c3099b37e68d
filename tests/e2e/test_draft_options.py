"""What cannot draft is refused in one line, and plans count what drafts."""

from dataclasses import replace
from pathlib import Path

import pytest

from model import drafts
from model.errors import OptionError
from model.memory.plan import make_plan
from model.options import RunnerOptions
from tests.e2e.conftest import Load
from tests.fakes import IntegerTokenizer


def test_weights_of_4_bits_and_two_drafters_are_refused(load_short: Load, short_model: Path) -> None:
    with pytest.raises(OptionError, match="--draft self needs weights of 16 bits, --quantize int4 has fewer"):
        load_short(draft="self")
    with pytest.raises(OptionError, match="--draft self needs weights of 16 bits, --quantize int8 has fewer"):
        load_short(draft="self", quantize="int8")
    with pytest.raises(OptionError, match="--draft self and --draft-model exclude each other"):
        load_short(draft="self", draft_model=str(short_model), quantize="int8")
    with pytest.raises(OptionError, match="--draft self needs weights in the compiled kernels"):
        load_short(draft="self", dtype="float32", quantize="none")
    with pytest.raises(OptionError, match="needs both models in the compiled kernels of a CPU"):
        load_short(draft_model=str(short_model), dtype="float32", quantize="none")


def test_another_vocabulary_is_refused(load_short: Load, short_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafts, "load_tokenizer", lambda path: IntegerTokenizer())
    other = short_model.with_name(f"other-{short_model.name}")
    other.symlink_to(short_model)
    load_short(draft_model=str(other), quantize="int8")
    sizes = iter((100, 101))

    class Other(IntegerTokenizer):
        def __init__(self) -> None:
            super().__init__()
            self.vocab_size = next(sizes)

    monkeypatch.setattr(drafts, "load_tokenizer", lambda path: Other())
    with pytest.raises(OptionError, match="has another vocabulary: 101 tokens, the model has 100"):
        load_short(draft_model=str(other), quantize="int8")


def test_plans_count_the_weights_and_the_cache_that_draft(embedded_model: Path) -> None:
    options = RunnerOptions(str(embedded_model), device="cpu", quantize="none")
    plain = make_plan(embedded_model, options, 2**34)
    narrow = make_plan(embedded_model, replace(options, draft="self"), 2**34)
    small = make_plan(embedded_model, replace(options, draft_model=str(embedded_model)), 2**34)
    alone = make_plan(embedded_model, replace(options, quantize="auto"), 2**34)
    assert narrow.token == plain.token
    assert 0.2 < narrow.weights / plain.weights - 1 < 0.35, "docs/speculation.md says 28 %"
    assert small.weights == plain.weights + alone.weights
    assert small.token == plain.token + alone.token
