"""Several ranks give what one process gives: every layout, every kind of layer, every scheme of a CPU."""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from model.attention import choose
from model.sharding.layout import Layout
from tests.model.driving import CPU, EXPERTS, Driver, checkpoint, loaded, tiny
from tests.model.network import oracles, rank_cases
from tests.model.network.oracles import TOKENS
from tests.model.network.ranks import Ranks

DENSE = (Layout(2), Layout(4), Layout(1, 2), Layout(2, 2))
EXPERTS_WHOLE = (Layout(2, experts=True), Layout(4, experts=True), Layout(2, 2, experts=True))
ALL: Mapping[str, tuple[Layout, ...]] = {
    "mistral": DENSE,
    "llama tied": DENSE,
    "mixtral": (*DENSE, *EXPERTS_WHOLE),
}
"""Layouts of each kind of model. There are two heads of keys, and 4 ranks hold each of them twice."""
PROMPT, OUTPUT = TOKENS[:20], 32


def mixtral() -> Any:
    shape = {**oracles.SHAPE, "num_local_experts": 4, "num_experts_per_tok": 2}
    torch.manual_seed(2)
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**shape, sliding_window=None)).eval()


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started = Ranks()
    yield started
    started.close()


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("shape", [(1, 5), (3, 7), (300, 257)], ids=str)
def test_sums_have_the_order_of_the_ranks(ranks: Ranks, n: int, shape: tuple[int, int]) -> None:
    """Whatever the size: in float32 another order gives other bits."""
    parts = [torch.randn(shape, generator=torch.Generator().manual_seed(rank)) for rank in range(n)]
    expected = parts[0].clone()
    for part in parts[1:]:
        expected += part
    for found in ranks.run(Layout(n), rank_cases.sums, parts):
        assert torch.equal(found, expected)


Saved = Callable[[str], tuple[Path, list[int], Tensor]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """The directory of a kind, a prompt with the greedy output of transformers, and all their log probabilities."""

    @cache
    def made(kind: str) -> tuple[Path, list[int], Tensor]:
        directory = tmp_path_factory.mktemp("hf")
        model = mixtral() if kind == "mixtral" else oracles.build(kind)
        model.save_pretrained(directory)
        with torch.no_grad():
            tokens = list(PROMPT)
            while len(tokens) < len(PROMPT) + OUTPUT:
                tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
            expected = model(input_ids=torch.tensor([tokens])).logits[0].log_softmax(-1)
        return directory, tokens, expected

    return made


@pytest.mark.parametrize(
    ("kind", "layout"), [(kind, layout) for kind, layouts in ALL.items() for layout in layouts], ids=str
)
def test_greedy_texts_and_logprobs_are_those_of_transformers(
    ranks: Ranks, kind: str, layout: Layout, saved: Saved
) -> None:
    directory, tokens, expected = saved(kind)
    for found in ranks.run(layout, rank_cases.logits, directory, tokens, [None, 9])[layout.sampler]:
        torch.testing.assert_close(found.log_softmax(-1), expected, atol=1e-4, rtol=0)
        assert found[len(PROMPT) - 1 : -1].argmax(-1).tolist() == tokens[len(PROMPT) :]


SPARSE = {**EXPERTS, "n_experts": 4, "expert_hidden_dim": 128}
WIDE = {"dim": 64, "head_dim": 32, "hidden_dim": 256, "vocab_size": 96}
"""The schemes store groups of 32 or 64 channels, of which four ranks have whole ones each."""


@pytest.mark.parametrize("scheme", ["int8", "int4", "bfloat16"])
@pytest.mark.parametrize(
    ("experts", "layout"),
    [
        *(({}, layout) for layout in (Layout(2), Layout(4), Layout(2, 2))),
        *((SPARSE, layout) for layout in (Layout(4), Layout(4, experts=True), Layout(2, 2, experts=True))),
    ],
    ids=lambda value: value.name if isinstance(value, Layout) else "sparse" if value else "dense",
)
def test_the_bits_of_a_row_do_not_depend_on_others(
    ranks: Ranks, scheme: str, experts: Mapping[str, Any], layout: Layout
) -> None:
    """In the compiled kernels, for a given layout. Close to one process, whose int8 scales are those of whole rows."""
    config = tiny((None, 9), **WIDE, **experts)
    whole, *others = ranks.run(layout, rank_cases.in_company, config, scheme, PROMPT)[layout.sampler]
    for found in others:
        assert torch.equal(found, whole)
    expected = Driver(loaded(checkpoint(config), scheme), choose("auto", CPU)[1]).whole(PROMPT)
    close = (whole - expected).norm() / expected.norm()
    assert close < (0.1 if scheme == "int8" else 0.01)
