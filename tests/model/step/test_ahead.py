"""The tokens of the last step on the device."""

import torch

from model.step.ahead import LastTokens, resolve

CPU = torch.device("cpu")


def test_known_tokens_stay_after_a_step_that_sampled_none() -> None:
    """A graph of a step of chunks returns an empty tensor of tokens. On a GPU, a read beyond it loses the device."""
    tokens = torch.tensor([7, 0, 9])
    for sampled in ([], [torch.empty(0, dtype=torch.int64)]):
        assert resolve(tokens, LastTokens.of((), sampled, CPU).tokens).tolist() == [7, 0, 9]
