"""Quantized safetensors. Oracle: transformers on weights that follow from each format's definition, in float32."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from model.attention import choose
from model.checkpoint.open import open_checkpoint
from model.network import weights
from model.network.transformer import Transformer
from tests.model.checkpoint.quantized_files import FORMS, VOCAB, save
from tests.model.driving import CPU, Driver

TOKENS = [(7 * i + 3) % VOCAB for i in range(40)]
"""More than the window of 16."""


def network(directory: Path, scheme: str = "none") -> Driver:
    checkpoint = open_checkpoint(directory)
    with torch.device("meta"):
        model = Transformer(checkpoint.config, scheme)
    weights.load(
        model, checkpoint.config, checkpoint.rotation, checkpoint.tensors(), torch.float32, CPU, lambda _: None
    )
    return Driver(model.eval(), choose("auto", CPU)[1])


def expected(directory: Path, name: str) -> Tensor:
    model = save(name, directory)
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].log_softmax(dim=-1)


@pytest.mark.parametrize("name", FORMS)
def test_logprobs_are_those_of_the_dequantized_weights(name: str, tmp_path: Path) -> None:
    wanted = expected(tmp_path, name)
    found = network(tmp_path).whole(TOKENS).log_softmax(dim=-1)
    assert wanted.std() > 0.5  # the weights matter
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-4)
