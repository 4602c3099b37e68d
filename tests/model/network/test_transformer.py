"""The network against transformers on random checkpoints, in both file layouts, and its parameter counts."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.checkpoint.open import split_experts
from model.config import ModelConfig
from model.errors import ModelError
from model.network import weights
from model.network.transformer import Transformer
from model.sharding.shard import shard_of
from tests.model.attention.attending import SWIFT, make
from tests.model.attention.reference import ReferenceAttention
from tests.model.checkpoint.native_files import save_native
from tests.model.driving import CPU, EXPERTS, Driver, loaded, random_tensors, tiny

SHAPE = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "attn_implementation": "eager",
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
TOKENS = [(11 * i + i * i) % 96 for i in range(45)]


def save_hf(kind: str, directory: Path) -> Tensor:
    """Write a random model of `kind` with save_pretrained; its logits [n, vocab] for TOKENS."""
    import transformers

    torch.manual_seed(1)
    built = {
        "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)),
        "llama-tied": lambda: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**SHAPE, tie_word_embeddings=True, rope_theta=100_000.0)
        ),
        "llama-3.1": lambda: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(
                **SHAPE,
                rope_parameters={
                    "rope_type": "llama3",
                    "rope_theta": 500_000.0,
                    "factor": 8.0,
                    "low_freq_factor": 1.0,
                    "high_freq_factor": 4.0,
                    "original_max_position_embeddings": 32,
                },
            )
        ),
        "mistral": lambda: transformers.MistralForCausalLM(
            transformers.MistralConfig(**SHAPE, sliding_window=6, head_dim=16)
        ),
        "mixtral": lambda: transformers.MixtralForCausalLM(
            transformers.MixtralConfig(**SHAPE, num_local_experts=4, num_experts_per_tok=2, sliding_window=None)
        ),
        "mixtral-windowed": lambda: transformers.MixtralForCausalLM(
            transformers.MixtralConfig(**SHAPE, num_local_experts=5, num_experts_per_tok=3, sliding_window=6)
        ),
    }[kind]()
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.ndim == 1:  # norms: not all ones
                parameter.add_(torch.randn_like(parameter) * 0.1)
    built.eval().save_pretrained(directory)
    with torch.no_grad():
        return built(torch.tensor([TOKENS])).logits[0]


def first_mixtral(tensors: dict[str, Tensor], n_experts: int) -> dict[str, Tensor]:
    """The names of the first Mixtral release: all experts of a layer in one matrix, w2 transposed."""
    found = {}
    for name, tensor in tensors.items():
        if ".experts.0." in name:
            experts = [tensors[name.replace(".experts.0.", f".experts.{expert}.")] for expert in range(n_experts)]
            stacked = torch.cat([part.T if ".w2." in name else part for part in experts])
            found[name.replace("feed_forward.experts.0", "block_sparse_moe").removesuffix(".weight")] = stacked
        elif ".experts." not in name:
            found[name.replace("feed_forward.gate", "block_sparse_moe.gate")] = tensor
    return found


def since_large_3(tensors: dict[str, Tensor], n_experts: int) -> dict[str, Tensor]:
    """The names of releases since Mistral Large 3."""
    return {name.replace("feed_forward.", ""): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize("backend", SWIFT)
@pytest.mark.parametrize("kind", ["llama", "llama-tied", "llama-3.1", "mistral", "mixtral", "mixtral-windowed"])
def test_logits_agree_with_transformers(kind: str, backend: str, tmp_path: Path) -> None:
    expected = save_hf(kind, tmp_path)
    driver = Driver(loaded(tmp_path), make(backend), shuffle=0)
    torch.testing.assert_close(driver.whole(TOKENS), expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(driver.whole(TOKENS, 7), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["llama", "mistral", "mixtral", "mixtral-windowed"])
def test_native_files_agree_with_transformers(kind: str, tmp_path: Path) -> None:
    expected = save_hf(kind, tmp_path / "hf")
    save_native(tmp_path / "hf", tmp_path / "native")
    driver = Driver(loaded(tmp_path / "native"), make("sdpa"))
    torch.testing.assert_close(driver.whole(TOKENS, 20), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rename", [first_mixtral, since_large_3])
def test_native_names_of_experts(rename: Callable[[dict[str, Tensor], int], dict[str, Tensor]], tmp_path: Path) -> None:
    expected = save_hf("mixtral", tmp_path / "hf")
    native = save_native(tmp_path / "hf", tmp_path / "native")
    tensors = load_file(native / "consolidated.safetensors")
    renamed = {name: tensor.contiguous() for name, tensor in rename(tensors, 4).items()}
    save_file(renamed, native / "consolidated.safetensors")
    driver = Driver(loaded(tmp_path / "native"), make("sdpa"))
    torch.testing.assert_close(driver.whole(TOKENS, 20), expected, atol=1e-4, rtol=1e-4)


def test_experts_that_transformers_stores_together(tmp_path: Path) -> None:
    """transformers 5 keeps the experts of a layer in one tensor, and writes it so if it is told to."""
    import transformers

    expected = save_hf("mixtral", tmp_path / "each")
    model = transformers.MixtralForCausalLM.from_pretrained(tmp_path / "each")
    model.save_pretrained(tmp_path / "together", save_original_format=False)
    names = {name for name, _ in load_file(tmp_path / "together" / "model.safetensors").items()}
    assert "model.layers.0.mlp.experts.gate_up_proj" in names
    driver = Driver(loaded(tmp_path / "together"), make("sdpa"))
    torch.testing.assert_close(driver.whole(TOKENS), expected, atol=1e-4, rtol=1e-4)


def test_a_tensor_of_too_few_experts_is_refused() -> None:
    name = "layers.0.feed_forward.experts.*.w2.weight"
    for shape in ((3, 8, 8), (12, 8)):
        with pytest.raises(ModelError, match=r"\*\.w2\.weight' has shape .*, the configuration has 5 experts"):
            list(split_experts(name, torch.zeros(shape), 5))


MISTRAL = ModelConfig("mistral", 4096, 32, 32, 8, 128, 14336, 32000, 1e-5, 1e4, 8192, (4096,) * 32)
MIXTRAL = ModelConfig(
    "mixtral", 4096, 32, 32, 8, 128, 14336, 32000, 1e-5, 1e6, 32000, (None,) * 32, n_experts=8, n_experts_per_token=2
)


SPARSE = replace(
    MIXTRAL,
    n_layers=4,
    windows=(None,) * 4,
    n_experts_per_token=2,
    expert_hidden_dim=1792,
    n_shared_experts=2,
    first_k_dense_replace=1,
    route_every_n=2,
)
"""Only layer 2 has experts: 8 of 1792, and shared ones of 3584."""
SPARSE_COUNT = (
    2 * 32000 * 4096  # embeddings and head
    + 4096 + 4 * 2 * 4096  # norms
    + 4 * (2 * 4096 * 4096 + 2 * 4096 * 1024)  # attention
    + 3 * (3 * 4096 * 14336)  # dense layers
    + 8 * 4096 + 8 * (3 * 4096 * 1792) + 3 * 4096 * 3584  # gate, experts, shared experts
)  # fmt: skip


@pytest.mark.parametrize(
    ("config", "count"), [(MISTRAL, 7_241_732_096), (MIXTRAL, 46_702_792_704), (SPARSE, SPARSE_COUNT)]
)
def test_parameter_counts(config: ModelConfig, count: int) -> None:
    with torch.device("meta"):
        model = Transformer(config)
    assert model.n_parameters == count
    assert config.n_parameters == count


@pytest.mark.parametrize("changes", [{"tied_head": True}, {"n_experts": 4, "n_experts_per_token": 1}, {**EXPERTS}])
def test_configuration_and_network_count_alike(changes: dict[str, int]) -> None:
    config = tiny(**changes)
    with torch.device("meta"):
        assert Transformer(config).n_parameters == config.n_parameters


def _whole(config: ModelConfig, rotation: str, tensors: dict[str, Tensor]) -> Tensor:
    with torch.device("meta"):
        model = Transformer(config)
    weights.load(model, shard_of(config), rotation, tensors.items(), torch.float32, CPU, lambda done: None)
    return Driver(model, ReferenceAttention()).whole([11, 5, 9, 60, 2, 33])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("layers.1.feed_forward.w3.weight"), "has no tensor 'layers.1.feed_forward.w3.weight'"),
        (lambda t: t.update({"layers.9.x": torch.zeros(1)}), "tensor 'layers.9.x' that a mistral model has no place"),
        (
            lambda t: t.update({"norm.weight": torch.zeros(31)}),
            r"'norm.weight' has shape \[31\], the configuration needs \[32\]",
        ),
    ],
)
def test_nothing_missing_nothing_left_over(change, message: str) -> None:  # type: ignore[no-untyped-def]
    tensors = dict(random_tensors(tiny()))
    change(tensors)
    with pytest.raises(ModelError, match=message):
        _whole(tiny(), "half", tensors)


def test_a_tensor_twice_is_refused() -> None:
    config = tiny()
    twice = [*random_tensors(config), *random_tensors(config)]
    with torch.device("meta"):
        model = Transformer(config)
    with pytest.raises(ModelError, match=r"'tok_embeddings\.weight'"):
        weights.load(model, shard_of(config), "half", twice, torch.float32, CPU, lambda done: None)


def test_progress_reaches_one() -> None:
    seen: list[float] = []
    config = tiny()
    with torch.device("meta"):
        model = Transformer(config)
    weights.load(model, shard_of(config), "half", random_tensors(config), torch.float32, CPU, seen.append)
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
