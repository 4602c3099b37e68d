"""Penalties with counts of each sequence against a walk over all of its tokens, bit by bit."""

from collections import Counter
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.batch import Slice
from model.kernels.cpu import native
from model.sampling_params import SamplingParams
from model.step import sampler
from model.token_counts import TokenCounts

WIDTH = 40


def by_hand(logits: NDArray[np.float32], item: Slice) -> NDArray[np.float32]:
    """The penalties in the order of docs and papers, one float32 operation after the other."""
    changed, params = logits.copy(), item.params
    for token in set(item.tokens[: item.stop]):
        penalty = np.float32(params.repetition_penalty)
        changed[token] = changed[token] / penalty if changed[token] > 0 else changed[token] * penalty
    for token, n in Counter(item.tokens[item.n_prompt : item.stop]).items():
        changed[token] -= np.float32(params.presence_penalty) + np.float32(params.frequency_penalty) * np.float32(n)
    return changed


def compiled(logits: Tensor, items: list[Slice]) -> Tensor:
    rows, kernels = sampler.compiled_rows(items), native.kernels()
    assert rows is not None
    assert kernels is not None
    return kernels.sample(logits, rows.rows)


def pytorch(logits: Tensor, items: list[Slice]) -> Tensor:
    return sampler.sample(logits, items).tokens


def parameters(random: Random) -> SamplingParams:
    ranges = {"repetition_penalty": (0.5, 2), "presence_penalty": (-2, 2), "frequency_penalty": (-1, 1)}
    used: dict[str, Any] = {name: random.uniform(*ends) for name, ends in ranges.items() if random.random() < 0.6}
    return SamplingParams(temperature=0.0, max_tokens=99, **used)


def views(number: int, tokens: list[int], n_prompt: int, n_draft: int, made: tuple[SamplingParams, TokenCounts]) -> Any:
    length = len(tokens)
    params, counts = made
    return Slice(number, tokens, n_prompt, length - 1 - n_draft, length, (), params, 0, n_draft, counts=counts).samples


@pytest.mark.parametrize("sample", [compiled, pytorch])
@pytest.mark.parametrize("seed", range(5))
def test_counts_give_the_bits_of_a_walk(sample: Any, seed: int) -> None:
    """Sequences grow by one token or several, pause, and have drafts of which any number is rejected.

    In greedy rows the logits after the call are those that were compared: unchanged but for the penalties.
    """
    random, source = Random(seed), np.random.default_rng(seed)
    texts = [random.choices(range(WIDTH), k=random.randint(1, 30)) for _ in range(6)]
    lengths = [len(text) for text in texts]
    made = [(parameters(random), TokenCounts()) for _ in texts]
    for _ in range(40):
        present = [number for number in range(len(texts)) if random.random() < 0.7] or [0]
        drafts = {number: random.choices(range(WIDTH), k=random.choice((0, 0, 1, 5))) for number in present}
        items = [
            view
            for number in present
            for view in views(
                number, texts[number] + drafts[number], lengths[number], len(drafts[number]), made[number]
            )
        ]
        logits = source.normal(size=(len(items), WIDTH)).astype(np.float32)
        expected = np.stack([by_hand(*pair) for pair in zip(logits, items, strict=True)])
        changed = torch.from_numpy(logits.copy())
        tokens = sample(changed, items)
        assert changed.numpy().tobytes() == expected.tobytes()
        assert tokens.tolist() == expected.argmax(axis=1).tolist()
        for number in present:
            texts[number] += random.choices(range(WIDTH), k=random.randint(1, len(drafts[number]) + 1))


def test_counting_reads_a_token_once() -> None:
    class Read(list[int]):
        """A list that counts the items that are read."""

        n = 0

        def __getitem__(self, place: Any) -> Any:
            found = super().__getitem__(place)
            self.n += len(found)
            return found

    tokens, counts = Read([3, 4, 3]), TokenCounts()
    for _ in range(50):
        tokens.append(5)
        counts.grow(tokens, 3, len(tokens))
    assert tokens.n == 53
    assert dict(zip(counts.ids, counts.outputs, strict=True)) == {3: 0, 4: 0, 5: 50}


def test_ids_outside_the_row_change_nothing() -> None:
    params = SamplingParams(temperature=0.0, repetition_penalty=2.0)
    rows = torch.ones(3, 4)
    item = Slice(0, [9, -1, 2**40, 4], 4, 3, 4, (), params)
    assert compiled(rows[1:2], [item]).tolist() == [0]
    assert (rows == 1).all()
