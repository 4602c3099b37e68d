"""Pooled hidden states agree with transformers, however a prompt is cut or packed."""

from pathlib import Path
from typing import Any

import pytest
import torch

from model.batch import PageTable, Slice, StepBatch
from model.kernels.cpu import native
from model.loading import create
from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner

PROMPT = [3, 14, 15, 92, 65, 35, 89, 79, 32, 38, 46, 26, 43]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, torch.Tensor]]:
    """A directory with a windowed Mistral, and transformers' own pooled states [dim] of PROMPT."""
    from transformers import MistralConfig, MistralForCausalLM, MistralModel

    torch.manual_seed(3)
    shape: dict[str, Any] = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    shape |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    config = MistralConfig(**shape, initializer_range=0.4, attn_implementation="eager", sliding_window=5)
    theirs = MistralForCausalLM(config).eval()
    assert isinstance(theirs.model, MistralModel)
    directory = tmp_path_factory.mktemp("mistral")
    theirs.save_pretrained(directory)
    with torch.no_grad():
        states = theirs.model(torch.tensor([PROMPT])).last_hidden_state[0]  # [n, dim], after the last norm
    return directory, {"mean": states.mean(dim=0), "last": states[-1]}


def start(directory: Path, **options: Any) -> ModelRunner:
    return create(lambda stage, done: None, model=str(directory), **{"device": "cpu", **options})


def pooled(loaded: ModelRunner, pooling: str, cuts: list[int], beside: bool = False) -> torch.Tensor:
    """[dim] of PROMPT in slices that end at `cuts`, alone or beside a sequence that samples."""
    embedding, drawing = SamplingParams(max_tokens=0, embed=pooling), SamplingParams(max_tokens=8)
    total, begin = torch.zeros(loaded.info.dim, dtype=torch.float64), 0
    for stop in cuts:
        slices = [Slice(0, PROMPT, len(PROMPT), begin, stop, (PageTable(0, [1, 0]),), embedding)]
        if beside:
            slices.insert(0, Slice(1, PROMPT[::-1], len(PROMPT), 0, len(PROMPT), (PageTable(0, [3, 2]),), drawing))
        output = loaded.step(StepBatch(tuple(slices))).slices[-1]
        assert (output.tokens, output.logprobs) == ((), ())
        assert bool(output.pooled) == (pooling == "mean" or stop == len(PROMPT))
        total += torch.tensor(output.pooled or (0.0,), dtype=torch.float64)
        begin = stop
    return total / (len(PROMPT) if pooling == "mean" else 1)


@pytest.mark.parametrize("attention", ["paged", "sdpa"])
@pytest.mark.parametrize("cuts", [[13], [1, 2, 9, 13], [12, 13]])
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_transformers_pools_the_same(saved: Any, pooling: str, cuts: list[int], attention: str) -> None:
    directory, theirs = saved
    loaded = start(directory, dtype="float32", attention=attention)
    assert loaded.info.dim == 32
    torch.testing.assert_close(pooled(loaded, pooling, cuts).float(), theirs[pooling], rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(native.kernels() is None, reason="int8 without the kernels promises no bits")
@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_int8_gives_the_same_floats_in_any_pieces_and_company(saved: Any, pooling: str) -> None:
    directory, theirs = saved
    loaded = start(directory, quantize="int8")
    whole = pooled(loaded, pooling, [len(PROMPT)]).float()
    assert torch.cosine_similarity(whole, theirs[pooling], dim=0) > 0.98
    for cuts in ([13], [1, 2, 9, 13], [5, 13]):
        for beside in (False, True):
            assert torch.equal(pooled(loaded, pooling, cuts, beside).float(), whole)
