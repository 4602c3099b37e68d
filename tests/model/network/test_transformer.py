"""The names and shapes of the tensors of a network, and its parameter counts."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from model.checkpoint.experts import split_experts
from model.errors import ModelError
from model.network import weights
from model.network.transformer import Transformer
from model.sharding.shard import shard_of
from tests.model.attention.attending import make
from tests.model.checkpoint.native_files import save_native
from tests.model.driving import CPU, EXPERTS, Driver, loaded, random_stored, tiny
from tests.model.network.oracles import TOKENS, Rename, build, first_mixtral, logprobs, renamed, save, since_large_3


def agree(directory: Path, expected: Tensor) -> None:
    found = Driver(loaded(directory), make("sdpa")).whole(TOKENS, 20).log_softmax(-1)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("rename", [first_mixtral, since_large_3])
def test_native_names_of_experts(rename: Rename, tmp_path: Path) -> None:
    expected = save("mixtral", tmp_path / "hf")
    agree(renamed(save_native(tmp_path / "hf", tmp_path / "native"), rename), expected)


def test_experts_that_transformers_stores_together(tmp_path: Path) -> None:
    """transformers 5 keeps the experts of a layer in one tensor, and writes it so if it is told to."""
    model = build("mixtral")
    model.save_pretrained(tmp_path, save_original_format=False)
    assert "model.layers.0.mlp.experts.gate_up_proj" in load_file(tmp_path / "model.safetensors")
    agree(tmp_path, logprobs(model))


def test_a_tensor_of_too_few_experts_is_refused() -> None:
    name = "layers.0.feed_forward.experts.*.w2.weight"
    for shape in ((3, 8, 8), (12, 8)):
        with pytest.raises(ModelError, match=r"\*\.w2\.weight' has shape .*, the configuration has 5 experts"):
            list(split_experts(name, torch.zeros(shape), 5))


@pytest.mark.parametrize("changes", [{"tied_head": True}, {**EXPERTS}, {**EXPERTS, "route_every_n": 2}])
def test_configuration_and_network_count_alike(changes: dict[str, int]) -> None:
    config = tiny(**changes)
    with torch.device("meta"):
        assert Transformer(config).n_parameters == config.n_parameters


def test_progress_reaches_one() -> None:
    seen: list[float] = []
    config = tiny()
    with torch.device("meta"):
        model = Transformer(config)
    weights.load(model, shard_of(config), "half", random_stored(config), torch.float32, CPU, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
