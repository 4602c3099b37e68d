"""A parameter that is added as one row and one step acts on every path: compiled, PyTorch, ahead, and along a draft."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from model.batch import UNKNOWN, PageTable, Slice, StepBatch
from model.kernels.cpu import native
from model.loading import load_from
from model.machine import records
from model.options import RunnerOptions
from model.sampling_params import PARAMETERS, SamplingParams, Stage, parameter
from model.step import distribution, sampler
from model.step.logits import HIDDEN, SamplingStep
from model.step.runner import ModelRunner
from service.engine import messages
from service.engine.messages import Submit, from_json, to_json
from service.engine.scheduling import sequence
from service.engine.scheduling.scheduler import Scheduler
from service.engine.scheduling.sequence import EndRule
from tests.engine.driving import Client
from tests.model.driving import checkpoint, tiny

VOCABULARY = 64


@dataclass(frozen=True)
class Extended(SamplingParams):
    """Parameters with one more of each stage."""

    upper_half: bool = parameter(False, Stage.LOGITS)
    successor: bool = parameter(False, Stage.LOGITS, reads_output=True)
    even: bool = parameter(False, Stage.DISTRIBUTION)
    other_parity: bool = parameter(False, Stage.DISTRIBUTION, reads_output=True)
    end_at: int = parameter(0, Stage.END, (0, VOCABULARY))
    a_report: int | None = parameter(None, Stage.REPORT)


def _upper_half(logits: Tensor, slices: Sequence[Slice]) -> None:
    logits[:, : logits.shape[1] // 2] = HIDDEN


def _even(logits: Tensor, slices: Sequence[Slice]) -> None:
    logits[:, 1::2] = HIDDEN


def _successor(logits: Tensor, slices: Sequence[Slice]) -> None:
    """Only the token that follows the last one by number."""
    for row, item in zip(logits, slices, strict=True):
        row[np.arange(len(row)) != (last(item) + 1) % len(row)] = HIDDEN


def _other_parity(logits: Tensor, slices: Sequence[Slice]) -> None:
    """Only even tokens after an odd one, and odd ones after an even one."""
    for row, item in zip(logits, slices, strict=True):
        row[last(item) % 2 :: 2] = HIDDEN


def last(item: Slice) -> int:
    token = item.tokens[item.stop - 1]
    assert token != UNKNOWN, "a step that reads the output ran ahead of it"
    return token


def _end_at(params: SamplingParams, token: int, n: int) -> str | None:
    """The output ends with its `end_at`-th token."""
    assert isinstance(params, Extended)
    return "stop" if n == params.end_at else None


@pytest.fixture(autouse=True)
def steps(monkeypatch: pytest.MonkeyPatch) -> None:
    before = (
        SamplingStep(frozenset({"upper_half"}), _upper_half),
        SamplingStep(frozenset({"successor"}), _successor),
    )
    within = (SamplingStep(frozenset({"even"}), _even), SamplingStep(frozenset({"other_parity"}), _other_parity))
    monkeypatch.setattr(sampler, "LOGITS_STEPS", (*sampler.LOGITS_STEPS, *before))
    monkeypatch.setattr(distribution, "DISTRIBUTION_STEPS", (*distribution.DISTRIBUTION_STEPS, *within))
    monkeypatch.setattr(sequence, "END_RULES", (EndRule(frozenset({"end_at"}), _end_at), *sequence.END_RULES))


@pytest.fixture(scope="module", params=["compiled", "torch"])
def implementation(request: pytest.FixtureRequest) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setenv("NORIA_KERNELS", "torch")
        yield str(request.param)


@pytest.fixture(scope="module")
def runner(implementation: str) -> ModelRunner:
    options = RunnerOptions("", device="cpu", dtype="float32", max_sequences=8, max_step_tokens=64, cache_memory=2**22)
    made = load_from(checkpoint(tiny(vocab_size=VOCABULARY)), options, lambda stage, done: None)
    made.info = replace(made.info, runs_ahead=True)
    return made


def after(row: int, params: SamplingParams) -> Slice:
    return Slice(row, [row], 1, 0, 1, (), params)


def sampled(logits: Tensor, items: Sequence[Slice]) -> list[int]:
    return [token for token, _ in sampler.sample(logits.clone(), items, (), native.kernels()).read()]


def test_each_stage_acts_in_every_implementation(implementation: str) -> None:
    """A row beside others is sampled as it is alone."""
    logits = torch.randn(60, 500, generator=torch.Generator().manual_seed(1))
    names = ("upper_half", "even", "successor", "other_parity", "end_at", "seed")
    items = [after(n, Extended(top_k=200, top_p=0.95, **{"seed": n, names[n % 6]: n % 6 + 1})) for n in range(60)]  # type: ignore[arg-type]
    found = sampled(logits, items)
    assert min(found[0::6]) >= 250
    assert not any(token % 2 for token in found[1::6])
    assert found[2::6] == [row + 1 for row in range(2, 60, 6)]
    assert all(token % 2 != row % 2 for row, token in zip(range(3, 60, 6), found[3::6], strict=True))
    assert any(token % 2 for token in found[4::6])
    assert found == [sampled(logits[row : row + 1], [item])[0] for row, item in enumerate(items)]


class PromptOnly:
    """Tokens of a sequence whose output is still unknown: reading it fails."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: object) -> int:
        raise AssertionError("a parameter without reads_output reads the output")


USED = {
    "temperature": 0.7,
    "top_p": 0.5,
    "top_k": 3,
    "min_p": 0.1,
    "min_tokens": 3,
    "seed": 4,
    "logit_bias": ((3, 5.0),),
    "allowed_token_ids": (1, 2, 3),
}
"""A value in use of each parameter that shapes or chooses and does not read the output."""


def test_a_parameter_that_reads_the_output_says_so(implementation: str) -> None:
    stages = (Stage.LOGITS, Stage.DISTRIBUTION)
    blind = {name for name, row in PARAMETERS.items() if row.stage in stages and not row.reads_output}
    assert blind <= USED.keys(), "add a value of the new parameter to USED"
    logits = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(1))
    for name in blind:
        params = SamplingParams(max_tokens=9, stop_token_ids=(5,), **({"temperature": 0.7} | {name: USED[name]}))  # type: ignore[arg-type]
        assert params.independent_of_output
        assert sampled(logits, [Slice(0, PromptOnly(), 2, 3, 4, (), params)])  # type: ignore[arg-type]


def test_the_compiled_kernel_samples_only_rows_whose_parameters_it_implements(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NORIA_KERNELS", raising=False)
    in_pytorch: list[int] = []
    choose = distribution._choose

    def noted(logits: Tensor, slices: Sequence[Slice], first: int) -> Tensor:
        in_pytorch.extend(item.sequence_id for item in slices)
        return choose(logits, slices, first)

    monkeypatch.setattr(distribution, "_choose", noted)
    own = SamplingParams(temperature=0.5, top_p=0.5, top_k=5, min_p=0.1, seed=7, repetition_penalty=1.5)
    params = [own, Extended(even=True), Extended(end_at=1, a_report=2, upper_half=True), Extended(other_parity=True)]
    sampled(torch.randn(4, 50), [after(row, each) for row, each in enumerate(params)])
    assert in_pytorch == [1, 3]


ACTS: dict[str, Any] = {
    "upper_half": lambda before, token: token >= VOCABULARY // 2,
    "even": lambda before, token: token % 2 == 0,
    "successor": lambda before, token: token == (before + 1) % VOCABULARY,
    "other_parity": lambda before, token: token % 2 != before % 2,
}


@pytest.mark.parametrize("name", ACTS)
def test_a_step_runs_ahead_unless_the_parameter_reads_the_output(name: str, runner: ModelRunner) -> None:
    params = Extended(seed=3, max_tokens=8, **{name: 1})  # type: ignore[arg-type]
    client = Client(runner, [[Submit(0, [5], params), Submit(1, [8], replace(params, seed=4))]])
    assert (client.n_ahead > 0) == (name not in ("successor", "other_parity"))
    for number, first in enumerate((5, 8)):
        tokens = client.answers[number]
        assert len(tokens) == 8
        assert all(map(ACTS[name], [first, *tokens], tokens))


@pytest.mark.parametrize("name", ACTS)
def test_every_position_of_a_draft_is_sampled_with_it(name: str, runner: ModelRunner) -> None:
    """A draft gives the same tokens as one token a step, up to the first that differs."""
    params = Extended(seed=3, max_tokens=9, **{name: 1})  # type: ignore[arg-type]
    alone = Client(runner, [[Submit(0, [5], params)]]).answers[0]
    for wrong in range(5):
        draft = [token if n != wrong else (token + 2) % VOCABULARY for n, token in enumerate(alone[:4])]
        tables = tuple(PageTable(0, [1]) for _ in runner.info.pools)
        item = Slice(0, [5, *draft], 1, 0, 5, tables, params, n_draft=4)
        (output,) = runner.step(StepBatch((item,))).slices
        assert list(output.tokens) == alone[: wrong + 1]


DRAFTS: list[dict[str, int]] = [{}, {"prompt_lookup_num_tokens": 8, "successor": 1}]
"""With `successor`, a prompt that counts has the answer in it: nearly all draft tokens are right."""
COUNTING = [*range(5, 50), 5, 6]


@pytest.mark.parametrize("drafts", DRAFTS, ids=["ahead", "drafts"])
def test_an_output_ends_where_the_parameter_says(drafts: dict[str, int], runner: ModelRunner) -> None:
    """A step that runs ahead, or an accepted draft, samples tokens after the end: the output has none of them."""
    params = Extended(temperature=0.0, max_tokens=24, **drafts)  # type: ignore[arg-type]
    whole = Client(runner, [[Submit(0, COUNTING, params)]]).answers[0]
    assert len(whole) == 24
    for n in range(1, 24):
        client = Client(runner, [[Submit(0, COUNTING, replace(params, end_at=n))]])
        assert client.answers[0] == whole[:n]
        assert drafts or n < 2 or client.n_ahead > 0


@pytest.mark.parametrize("drafts", DRAFTS, ids=["ahead", "drafts"])
def test_a_report_changes_no_token(drafts: dict[str, int], runner: ModelRunner) -> None:
    plain = Extended(seed=3, max_tokens=12, **drafts)  # type: ignore[arg-type]
    requests = [Submit(0, COUNTING, plain), Submit(1, COUNTING, replace(plain, a_report=1))]
    client = Client(runner, [requests])
    assert client.answers[0] == client.answers[1]
    assert drafts or client.n_ahead > 0


def test_it_crosses_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(Submit.__annotations__, "params", Extended)
    monkeypatch.setitem(messages._READERS, "Submit", records.record(Submit))
    sent = Submit(1, [1], Extended(even=True, end_at=3, a_report=0))
    assert from_json(json.loads(to_json(sent))) == sent


@pytest.mark.parametrize("like", ["max_tokens", "prompt_lookup_num_tokens"])
def test_a_forgotten_parameter_stops_the_scheduler(
    like: str, runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = replace(PARAMETERS[like], name="forgotten")
    monkeypatch.setattr(sequence, "PARAMETERS", {**PARAMETERS, "forgotten": row})
    with pytest.raises(NotImplementedError, match="the scheduler does not implement forgotten"):
        Scheduler(runner.info, max_sequences=1, max_step_tokens=8)


@pytest.mark.parametrize("like", ["logit_bias", "min_p", "logprobs"])
def test_a_forgotten_parameter_stops_the_runner(like: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(PARAMETERS[like], name="forgotten")
    monkeypatch.setattr(sampler, "PARAMETERS", {**PARAMETERS, "forgotten": row})
    options = RunnerOptions("", device="cpu", dtype="float32", cache_memory=2**22)
    with pytest.raises(NotImplementedError, match="no sampling step and no report implements forgotten"):
        load_from(checkpoint(tiny()), options, lambda stage, done: None)
