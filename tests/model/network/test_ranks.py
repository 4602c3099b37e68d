"""Several ranks give what one process gives: every layout, every kind of layer, every scheme of a CPU."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model.config.latent import LatentConfig
from model.sharding.layout import Layout
from tests.model.attention.attending import best
from tests.model.driving import EXPERTS, Driver, checkpoint, loaded, tiny
from tests.model.network import oracles, rank_cases
from tests.model.network.latent_models import mistral4
from tests.model.network.oracles import TOKENS
from tests.model.network.ranks import Ranks

DENSE = (Layout(2), Layout(4), Layout(1, 2), Layout(2, 2))
EXPERTS_WHOLE = (Layout(2, experts=True), Layout(4, experts=True), Layout(2, 2, experts=True))
ALL: Mapping[str, tuple[Layout, ...]] = {
    "mistral": DENSE,
    "llama tied": DENSE,
    "mixtral": (*DENSE, *EXPERTS_WHOLE),
    "mistral4": (*DENSE, *EXPERTS_WHOLE),
}
"""Layouts of each kind of model. There are two heads of keys, and 4 ranks hold each of them twice."""
PROMPT, OUTPUT = TOKENS[:20], 32


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    started = Ranks()
    yield started
    started.close()


@pytest.mark.parametrize("n", [2, 4])
@pytest.mark.parametrize("shape", [(1, 5), (3, 7), (513, 513)], ids=str)
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
        model = mistral4(n_routed_experts=8) if kind == "mistral4" else oracles.build(kind)
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
LATENT = {"latent": LatentConfig(64, 64, 24, 8, 32), "rope_dim": 8}


def _kind(changes: Mapping[str, Any]) -> str:
    return "latent" if "latent" in changes else "sparse" if changes else "dense"


@pytest.mark.each
@pytest.mark.parametrize("scheme", ["int8", "int4", "bfloat16"])
@pytest.mark.parametrize(
    ("experts", "layout"),
    [
        *(({}, layout) for layout in (Layout(2), Layout(4), Layout(2, 2))),
        *((LATENT, layout) for layout in (Layout(2), Layout(2, 2))),
        *((SPARSE, layout) for layout in (Layout(4), Layout(4, experts=True), Layout(2, 2, experts=True))),
    ],
    ids=lambda value: value.name if isinstance(value, Layout) else _kind(value),
)
def test_the_bits_of_a_row_do_not_depend_on_others(
    ranks: Ranks, scheme: str, experts: Mapping[str, Any], layout: Layout
) -> None:
    """In the compiled kernels, for a given layout. Close to one process, whose int8 scales are those of whole rows."""
    config = tiny((None, 9), **WIDE, **experts)
    whole, *others = ranks.run(layout, rank_cases.in_company, config, scheme, PROMPT)[layout.sampler]
    for found in others:
        assert torch.equal(found, whole)
    expected = Driver(loaded(checkpoint(config), scheme), best()).whole(PROMPT)
    close = (whole - expected).norm() / expected.norm()
    assert close < (0.1 if scheme == "int8" else 0.01)


@pytest.mark.parametrize("widths", [(496, 504), (240, 256, 240, 264)], ids=len)
def test_the_first_rank_has_the_logits_of_all_tokens(ranks: Ranks, widths: Sequence[int]) -> None:
    logits = torch.randn(160, sum(widths), generator=torch.Generator().manual_seed(0))
    first, *others = ranks.run(Layout(len(widths)), rank_cases.gathered, logits, widths)
    assert torch.equal(first, logits)
    assert not any(found is not None for found in others)


@pytest.mark.parametrize("experts", [{}, SPARSE], ids=_kind)
def test_one_call_gives_the_bits_of_layer_by_layer(ranks: Ranks, experts: Mapping[str, Any]) -> None:
    """Also with the embeddings of an image. Ranks that share layers hold the same hidden states."""
    config = tiny((None, 9), **WIDE, **experts)
    media = torch.tensor([0, 3, 4]), torch.randn(3, config.dim)
    found = ranks.run(Layout(2), rank_cases.with_embeddings, config, PROMPT, media)
    assert all(torch.equal(each, found[0][0]) for pair in found for each in pair)
