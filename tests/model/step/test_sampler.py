"""The sampler against a slow one in plain Python, and against the softmax of its logits."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from random import Random

import pytest
import torch
from torch import Tensor

from model.batch import Slice, TokenLogprob
from model.kernels.cpu import native
from model.kernels.cpu.records import NO_TOKEN, NOT_FINITE
from model.sampling_params import SamplingParams
from model.step import distribution, sampler
from model.step.noise import noise, noise_keys

CPU = torch.device("cpu")


@pytest.fixture(autouse=True, params=["compiled", "torch"])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "torch":
        monkeypatch.setenv("NORIA_KERNELS", "torch")
    return request.param


def after(tokens: Sequence[int] = (0,), n_prompt: int = 1, choice: int = 0, **params: object) -> Slice:
    """A slice that samples after `tokens`."""
    return Slice(
        0, list(tokens), n_prompt, len(tokens) - 1, len(tokens), (), SamplingParams(**params), choice  # type: ignore[arg-type]
    )  # fmt: skip


def sample(logits: Tensor, items: Sequence[Slice]) -> list[tuple[int, TokenLogprob | None]]:
    return sampler.sample(logits, items, (), native.kernels()).read()


def sample_one(logits: list[float], item: Slice) -> int:
    return sample(torch.tensor([logits]), [item])[0][0]


def greedy(logits: list[float], tokens: Sequence[int] = (0,), n_prompt: int = 1, **params: object) -> int:
    return sample_one(logits, after(tokens, n_prompt, temperature=0.0, **params))


def probabilities_by_hand(logits: list[float], params: SamplingParams) -> dict[int, float]:
    """Probabilities after temperature, min_p, top_k and top_p."""
    peak = max(logits)
    weights = {i: math.exp((x - peak) / params.temperature) for i, x in enumerate(logits)}
    weights = {i: w for i, w in weights.items() if w >= params.min_p}
    ranked = sorted(weights, key=lambda i: (-weights[i], i))
    if params.top_k > 0:
        ranked = ranked[: params.top_k]
    total = sum(weights[i] for i in ranked)
    chosen, mass = [], 0.0
    for i in ranked:
        chosen.append(i)
        mass += weights[i] / total
        if mass >= params.top_p:
            break
    total = sum(weights[i] for i in chosen)
    return {i: weights[i] / total for i in chosen}


def sample_by_hand(logits: list[float], item: Slice) -> int:
    """The token with the greatest log p + Gumbel noise."""
    probabilities = probabilities_by_hand(logits, item.params)
    keys = noise_keys([item.params.seed], [item.choice], [item.stop - item.n_prompt])
    uniforms = noise(keys, len(logits), CPU)[0].tolist()
    return max(probabilities, key=lambda i: math.log(probabilities[i]) - math.log(-math.log(uniforms[i])))


# Greedy


def test_greedy_takes_the_greatest_and_the_lowest_id_of_equals() -> None:
    assert greedy([0.0, 3.0, 1.0]) == 1
    assert greedy([0.0, 3.0, 1.0, 3.0]) == 1


# Steps before the choice


def test_min_tokens_hides_end_tokens_until_enough() -> None:
    logits = [0.0, 9.0, 5.0]
    common = {"min_tokens": 2, "stop_token_ids": (1,)}
    assert [greedy(logits, [0] * n, **common) for n in (1, 2, 3)] == [2, 2, 1]


def test_only_allowed_tokens_are_sampled() -> None:
    assert greedy([0.0, 9.0, 5.0, 7.0], allowed_token_ids=(2, 0, 3, 0)) == 3
    assert greedy([0.0, 9.0, 5.0, 7.0], allowed_token_ids=(0, 2), logit_bias=((1, 100.0), (0, 6.0))) == 0
    sampled = {sample_one([0.0, 9.0, 0.5, 7.0], after(seed=seed, allowed_token_ids=(0, 2))) for seed in range(100)}
    assert sampled == {0, 2}


def test_a_bad_word_is_never_completed() -> None:
    """Its last token is hidden where the output, not the prompt, ends with those before it."""
    logits = [0.0, 9.0, 5.0, 7.0]
    words = ((1,), (2, 3, 3), (0, 0, 2))
    assert greedy(logits, [2, 3], 0, bad_words=words) == 2
    assert greedy(logits, [2, 3], 1, bad_words=words) == 3
    assert greedy(logits, [3, 3], 0, bad_words=words) == 3
    assert greedy(logits, [2, 3, 0, 0], 0, bad_words=words, logit_bias=((2, 50.0),)) == 3
    random = Random(7)
    for _ in range(200):
        words = tuple(tuple(random.choices(range(3), k=random.randint(1, 3))) for _ in range(3))
        output = random.choices(range(3), k=random.randint(0, 4))
        hidden = {word[-1] for word in words if (*output, word[-1])[-len(word) :] == word}
        expected = min(set(range(4)) - hidden, key=lambda token: -logits[token])
        assert greedy(logits, [9, *output], 1, bad_words=words) == expected


def test_logit_bias() -> None:
    assert greedy([0.0, 3.0, 1.0], logit_bias=((1, -2.5), (0, 0.75))) == 2
    assert greedy([0.0, 3.0, 1.0], logit_bias=((0, 100.0),)) == 0


def test_repetition_penalty_divides_positive_and_multiplies_negative() -> None:
    assert greedy([4.0, 3.0], [0], repetition_penalty=1.3) == 0  # 3.08
    assert greedy([4.0, 3.0], [0], repetition_penalty=1.4) == 1  # 2.86
    assert greedy([-1.0, -1.5], [0], repetition_penalty=1.6) == 1  # -1.6


def test_presence_and_frequency_count_the_output_only() -> None:
    logits = [1.0, 0.95]
    assert greedy(logits, [0, 0, 0], 3, presence_penalty=2.0) == 0
    assert greedy(logits, [0, 0, 0], 2, presence_penalty=0.1) == 1
    assert greedy([1.0, 0.85, 0.0], [2, 0, 0, 0], 1, presence_penalty=0.1) == 0
    assert greedy([1.0, 0.85, 0.0], [2, 0, 0, 0], 1, frequency_penalty=0.1) == 1


def test_penalties_follow_bias_in_order() -> None:
    """Bias first: 1 + 4 = 5, then halved: 2.5 < 3."""
    assert greedy([1.0, 3.0], [0], logit_bias=((0, 4.0),), repetition_penalty=2.0) == 1


# The distribution


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.3},
        {"top_k": 1},
        {"top_k": 7},
        {"top_p": 0.0},
        {"top_p": 0.1},
        {"top_p": 1e-50},
        {"top_p": 0.9},
        {"top_p": 0.999, "temperature": 2.0},
        {"min_p": 0.2},
        {"top_k": 20, "top_p": 0.7, "min_p": 0.02, "temperature": 1.5},
        {"top_k": 500, "top_p": 0.999999},
    ],
)
def test_tokens_equal_those_of_the_plain_sampler(params: dict[str, float]) -> None:
    source = random.Random(3)
    for seed in range(60):
        logits = [source.gauss(0, 2) for _ in range(200)]
        exact = torch.tensor(logits).tolist()
        item = after(seed=seed, **params)
        assert sample_one(logits, item) == sample_by_hand(exact, item)


def test_top_p_over_many_near_equal_tokens() -> None:
    """The mass needs thousands of tokens, more than the sampler sorts at first."""
    source = random.Random(4)
    logits = torch.tensor([source.gauss(0, 0.3) for _ in range(5000)]).tolist()
    items = [after(seed=seed, top_p=0.8) for seed in range(25)]
    sampled = sample(torch.tensor([logits] * 25), items)
    assert [token for token, _ in sampled] == [sample_by_hand(logits, item) for item in items]


@pytest.mark.parametrize("params", [{"top_k": 3}, {"top_p": 0.5}])
def test_ties_at_the_cut_go_to_the_lowest_ids(params: dict[str, float]) -> None:
    sampled = {sample_one([0.0] * 6, after(seed=seed, **params)) for seed in range(100)}
    assert sampled == {0, 1, 2}


@pytest.mark.parametrize("params", [{"temperature": 0.7}, {"top_k": 4}, {"top_p": 0.75}, {"min_p": 0.2}])
def test_samples_follow_the_distribution(params: dict[str, float]) -> None:
    """Chi-square over 5,000 seeds; the limit is about 6 standard deviations above the mean."""
    logits = [0.3, -1.0, 2.0, 1.9, 0.0, 0.7, 1.2, -0.4]
    n = 5_000
    items = [after(seed=seed, **params) for seed in range(n)]
    counts = Counter(token for token, _ in sample(torch.tensor([logits] * n), items))
    expected = probabilities_by_hand(logits, items[0].params)
    assert set(counts) == set(expected)
    chi_square = sum((counts[i] - n * p) ** 2 / (n * p) for i, p in expected.items())
    freedom = len(expected) - 1
    assert chi_square < freedom + 6 * math.sqrt(2 * freedom)


def test_smallest_temperatures_are_greedy() -> None:
    for temperature in (1e-3, 1e-20, 1e-300, 5e-324):
        assert sample_one([1.0, 80.0, 79.0, -50.0], after(temperature=temperature)) == 1


def test_extreme_logits_stay_numbers() -> None:
    assert sample_one([1e38, -1e38, 3e38], after(temperature=0.01)) == 2
    assert sample_one([-1e4, -1e4 - 1, -2e4], after(top_p=0.5)) == 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("place", [0, 1500, 1999])
def test_logits_that_are_no_numbers_give_no_token(bad: float, temperature: float, place: int) -> None:
    logits = torch.randn(3, 2000)
    logits[1, place] = bad
    slices = [after(temperature=temperature, logprobs=0) for _ in range(3)]
    tokens = [token for token, _ in sample(logits, slices)]
    assert tokens[1] == NOT_FINITE
    assert min(tokens[0], tokens[2]) >= 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_where_all_tokens_are_hidden_none_is_sampled(temperature: float) -> None:
    words = ((2,), (5, 2))
    assert (
        sample_one([0.0] * 9, after((5,), 0, temperature=temperature, allowed_token_ids=(2,), bad_words=words))
        == NO_TOKEN
    )


def test_rounding_hardly_ever_changes_a_sample() -> None:
    """Logits that differ by rounding errors, over a vocabulary of real size: the reason for Gumbel-max sampling."""
    torch.manual_seed(6)
    logits = torch.randn(200, 20_000)
    items = [after(seed=seed, temperature=1.3, top_p=0.9) for seed in range(200)]
    exact = [token for token, _ in sample(logits.clone(), items)]
    rounded = [token for token, _ in sample(logits + 1e-5 * torch.randn_like(logits), items)]
    assert sum(a != b for a, b in zip(exact, rounded, strict=True)) <= 1


def mixed_rows() -> tuple[Tensor, list[Slice]]:
    torch.manual_seed(5)
    items = [
        after([1, 2, 3], 1, seed=1, top_p=0.8, logprobs=3),
        after([1, 2, 3], 1, temperature=0.0, frequency_penalty=1.0),
        after(seed=2, choice=3, logit_bias=((4, 5.0),), repetition_penalty=1.2),
        after([4, 4, 4], 2, seed=3, top_k=5, min_p=0.1, min_tokens=4, max_tokens=9, stop_token_ids=(7, 8), logprobs=0),
        after(seed=-4, presence_penalty=-1.0),
        after(seed=5, allowed_token_ids=tuple(range(0, 100, 7))),
        after([1, 2, 3], 1, seed=6, bad_words=((2, 3, 8), (5,))),
    ]
    return torch.randn(len(items), 100) * 3, items


def test_a_row_does_not_depend_on_the_others() -> None:
    logits, items = mixed_rows()
    together = sample(logits.clone(), items)
    backwards = sample(logits.flip(0).contiguous(), items[::-1])[::-1]
    alone = [sample(logits[i : i + 1].clone(), [item])[0] for i, item in enumerate(items)]
    assert together == alone == backwards


# Logprobs


def test_logprobs_are_of_the_models_own_distribution() -> None:
    logits = [1.0, 2.0, 0.5, 1.5]
    item = after(temperature=0.0, logit_bias=((2, 50.0),), repetition_penalty=3.0, logprobs=2)
    ((token, logprob),) = sample(torch.tensor([logits]), [item])
    total = math.log(sum(math.exp(x) for x in logits))
    assert (token, logprob.token) == (2, 2)
    assert logprob.logprob == pytest.approx(0.5 - total, abs=1e-6)
    assert [i for i, _ in logprob.top] == [1, 3]
    assert [p for _, p in logprob.top] == pytest.approx([2.0 - total, 1.5 - total], abs=1e-6)


@pytest.mark.parametrize("extreme", [2.0**-24, 1 - 2.0**-24])
def test_ends_of_the_noise_hit_no_hidden_token(extreme: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids 0 and 4 are hidden: with any noise, they are not sampled."""
    others = 1 - extreme
    monkeypatch.setenv("NORIA_KERNELS", "torch")
    monkeypatch.setattr(distribution, "noise", lambda *_: torch.tensor([[extreme, others, others, others, extreme]]))
    assert sample_one([-1.0, 2.0, 0.0, 1.0, -1.0], after(top_k=3)) == 1


def test_implementations_sample_the_same_tokens(implementation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vocabulary has a real size, and the parameters every kind of cut. Rounding may change hardly any token."""
    kinds = ({}, {"top_p": 0.95}, {"top_k": 50}, {"min_p": 0.05}, {"top_k": 2000, "top_p": 0.5}, {"temperature": 0.0})
    items = [after(seed=seed, **kinds[seed % len(kinds)]) for seed in range(60)]
    logits = torch.randn(len(items), 49_153) * 2
    found = sample(logits.clone(), items)
    monkeypatch.setenv("NORIA_KERNELS", "torch" if implementation == "compiled" else "")
    assert sum(a != b for a, b in zip(found, sample(logits, items), strict=True)) <= 1
