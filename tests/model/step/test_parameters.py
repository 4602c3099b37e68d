"""Each parameter of the table has a step or a rule, and says whether it reads the output."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from model.batch import Slice
from model.kernels import cuda as triton
from model.kernels.cpu import native, records
from model.loading import load_from
from model.options import RunnerOptions
from model.sampling_params import PARAMETERS, SamplingParams, Stage
from model.step import distribution, head, sampler
from tests.model.driving import checkpoint, tiny

VOCABULARY = 64


def sampled(logits: Tensor, items: Sequence[Slice]) -> list[int]:
    return [token for token, _ in sampler.sample(logits.clone(), items, (), native.kernels()).read()]


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


@pytest.mark.parametrize("implementation", ["", "torch"])
def test_a_parameter_that_reads_the_output_says_so(implementation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORIA_KERNELS", implementation)
    stages = (Stage.LOGITS, Stage.DISTRIBUTION)
    blind = {name for name, row in PARAMETERS.items() if row.stage in stages and not row.reads_output}
    assert blind <= USED.keys(), "add a value of the new parameter to USED"
    logits = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(1))
    for name in blind:
        params = SamplingParams(max_tokens=9, stop_token_ids=(5,), **({"temperature": 0.7} | {name: USED[name]}))  # type: ignore[arg-type]
        assert params.independent_of_output
        assert sampled(logits, [Slice(0, PromptOnly(), 2, 3, 4, (), params)])  # type: ignore[arg-type]


def test_the_compiled_kernel_knows_each_parameter_of_the_distribution() -> None:
    """All of them go to kernels/cpu/sample.c: one that its rows lack would be ignored."""
    stage = {name for name, row in PARAMETERS.items() if row.stage is Stage.DISTRIBUTION}
    assert stage == {"temperature", "seed", *({"min_p", "top_p", "top_k"} & set(records.sampling().names or ()))}


def test_each_parameter_that_ends_or_schedules_is_implemented() -> None:
    """A new one belongs into one of these sets, beside its code."""
    in_ending = {"stop_token_ids", "max_tokens"}
    in_the_scheduler = {"prompt_lookup_num_tokens", "return_progress", "repetition_detection"}
    in_the_service = {"stop", "include_stop_str_in_output", "ignore_eos"}  # it knows text and end tokens
    stages = {name for name, row in PARAMETERS.items() if row.stage in (Stage.END, Stage.SCHEDULE)}
    assert stages <= in_ending | in_the_scheduler | in_the_service


@pytest.mark.parametrize("like", ["logit_bias", "min_p", "logprobs"])
def test_a_forgotten_parameter_stops_the_runner(like: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = replace(PARAMETERS[like], name="forgotten")
    monkeypatch.setattr(sampler, "PARAMETERS", {**PARAMETERS, "forgotten": row})
    options = RunnerOptions("", device="cpu", dtype="float32", cache_memory=2**22)
    with pytest.raises(NotImplementedError, match="no sampling step and no report implements forgotten"):
        load_from(checkpoint(tiny()), options, lambda stage, done: None)


def test_a_parameter_that_only_pytorch_implements_stops_a_runner_with_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of a CPU, and that of a GPU, samples in place of PyTorch, and would ignore it."""
    row = replace(PARAMETERS["min_p"], name="typical_p")
    monkeypatch.setattr(sampler, "PARAMETERS", {**PARAMETERS, "typical_p": row})
    monkeypatch.setattr(head, "IMPLEMENTED", distribution.IMPLEMENTED | {"typical_p"})
    options = RunnerOptions("", device="cpu", dtype="float32", cache_memory=2**22)
    with pytest.raises(NotImplementedError, match="no sampling step and no report implements typical_p"):
        load_from(checkpoint(tiny()), options, lambda stage, done: None)
    monkeypatch.setenv("NORIA_KERNELS", "torch")
    load_from(checkpoint(tiny()), options, lambda stage, done: None)
    monkeypatch.setattr(triton, "serve_on", lambda device: True)
    with pytest.raises(NotImplementedError, match="no sampling step and no report implements typical_p"):
        load_from(checkpoint(tiny()), options, lambda stage, done: None)
