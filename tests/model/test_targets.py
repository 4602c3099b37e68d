"""The targets of latency as options."""

import pytest

from model.errors import OptionError
from model.options import TARGET_FIRST_TOKEN_MS, TARGET_INTER_TOKEN_MS, RunnerOptions


def test_a_target_for_first_tokens_alone_is_refused() -> None:
    """Chunks are always the largest without the other one, so that it would change nothing."""
    message = "--target-first-token-ms 300 needs --target-inter-token-ms above 0"
    with pytest.raises(OptionError, match=message):
        RunnerOptions("", target_first_token_ms=300).target_seconds("cuda")
    with pytest.raises(OptionError, match=message):
        RunnerOptions("", target_first_token_ms=300, target_inter_token_ms=0).target_seconds("cpu")


def test_targets_that_are_not_set_are_those_of_the_device() -> None:
    for device in ("cpu", "cuda"):
        expected = (TARGET_FIRST_TOKEN_MS[device] / 1000, TARGET_INTER_TOKEN_MS[device] / 1000)
        assert RunnerOptions("").target_seconds(device) == expected
    assert RunnerOptions("", target_first_token_ms=0).target_seconds("cpu") == (0, TARGET_INTER_TOKEN_MS["cpu"] / 1000)
    assert RunnerOptions("", target_first_token_ms=300, target_inter_token_ms=20).target_seconds("cuda") == (0.3, 0.02)
