"""No sampling parameter makes the launch of a step wait for the device: only the read of its tokens does."""

import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from model.sampling_params import SamplingParams
from model.step.runner import ModelRunner
from model.warming import step
from tests.gpu.simulated.models import load

pytestmark = pytest.mark.simulated

SAMPLINGS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.7},
    "top_p": {"top_p": 0.9},
    "top_k": {"top_k": 5},
    "min_p": {"min_p": 0.1},
    "seed": {"seed": 1},
    "logprobs": {"logprobs": 5},
    "prompt logprobs": {"prompt_logprobs": 3},
    "allowed tokens": {"allowed_token_ids": (1, 2, 3)},
    "bad words": {"bad_words": ((5, 6), (7,))},
    "min_tokens": {"min_tokens": 5, "stop_token_ids": (2,)},
    "logit bias": {"logit_bias": ((3, 1.0),)},
    "penalties": {"repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.5},
    "embedding": {"embed": "mean", "max_tokens": 0},
}


@pytest.fixture(scope="module")
def runner() -> ModelRunner:
    return load()


@pytest.mark.parametrize("lengths", [[9], [1, 1]], ids=["prompt", "decoding"])
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_a_launch_waits_for_nothing(runner: ModelRunner, sampling: str, lengths: Sequence[int]) -> None:
    batch = step(runner.info, lengths, SamplingParams(**{"max_tokens": 8, **SAMPLINGS[sampling]}))
    runner.launch(batch)()  # compiles
    with refusing_waits():
        wait = runner.launch(batch)
    wait()


@contextmanager
def refusing_waits() -> Iterator[None]:
    """PyTorch raises an error where it would wait for the device. The test then fails with the place."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the check is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    except RuntimeError as error:
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/model/" in frame.filename]
        # Without the traceback, which would show tensors: numbers that no kernel has computed say how long a text is.
        pytest.fail(f"{error}: {frames[-1].filename}:{frames[-1].lineno}: {frames[-1].line}", pytrace=False)
    finally:
        torch.cuda.set_sync_debug_mode("default")
