"""Adapters against transformers with the weights merged by hand, and rows that do not depend on their neighbours."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from model.checkpoint.adapters.open import open_adapter
from model.checkpoint.open import open_checkpoint
from model.config.model import ModelConfig
from model.errors import ModelError
from model.network.adapters import check_shapes, place
from model.network.lora import Lora
from tests.model.checkpoint.adapter_files import ALL, ATTENTION, save_native, save_peft
from tests.model.checkpoint.native_files import save_native as save_native_base
from tests.model.driving import CPU, Driver, network
from tests.model.network.latent_models import mistral4
from tests.model.network.oracles import HEAD_DIM, TOKENS, WINDOW, llama, logprobs, mistral, mixtral


class Base(NamedTuple):
    """A random model of transformers, and its directory."""

    model: Any
    directory: Path
    config: ModelConfig

    @property
    def weights(self) -> Mapping[str, Tensor]:
        return self.model.state_dict()

    def merged(self, changes: Mapping[str, Tensor]) -> Tensor:
        """Log probabilities of the model whose weights are W + scale B A. The head is not tied any more."""
        own = {name: weight.clone() for name, weight in self.weights.items()}
        tied, self.model.lm_head.weight = self.model.lm_head.weight, nn.Parameter(own["lm_head.weight"].clone())
        try:
            self.model.load_state_dict({name: weight + changes.get(name, 0) for name, weight in own.items()})
            return logprobs(self.model)
        finally:
            self.model.load_state_dict(own)
            self.model.lm_head.weight = tied


KINDS = {
    "mistral": lambda: mistral(sliding_window=WINDOW, intermediate_size=64),
    "tied": lambda: llama(tie_word_embeddings=True),
    "mixtral": lambda: mixtral(tie_word_embeddings=False),
    "latent": mistral4,
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Base]:
    found = {}
    for kind, make in KINDS.items():
        torch.manual_seed(3)
        model = make().eval()
        directory = tmp_path_factory.mktemp(kind)
        model.save_pretrained(directory)
        found[kind] = Base(model, directory, open_checkpoint(directory).config)
    return found


def read(path: Path, config: ModelConfig, dtype: torch.dtype = torch.float32) -> Lora:
    file = open_adapter(path)
    check_shapes(file, config)
    return place(file, config, dtype, CPU)


def agree(base: Base, adapter: Path, changes: Mapping[str, Tensor]) -> None:
    """The model in `base` with the adapter has the log probabilities of the merged one, whole and in chunks."""
    expected = base.merged(changes)
    assert (expected - logprobs(base.model)).abs().max() > 0.1, "the adapter does not show"
    driver = network(base.directory)
    read_once = read(adapter, base.config)
    for chunk in (None, 7):
        mine = driver.whole(TOKENS, chunk, read_once).log_softmax(-1)
        torch.testing.assert_close(mine, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("kind", "targets"),
    [
        ("mistral", ALL),
        ("mistral", ("q_proj", "v_proj")),
        ("mistral", ("up_proj",)),
        ("tied", ALL),
        ("tied", ("lm_head",)),
        ("mixtral", (*ATTENTION, "lm_head")),
        ("latent", ("o_proj", "lm_head")),
    ],
    ids=str,
)
def test_peft_equals_merged_weights(kind: str, targets: tuple[str, ...], bases: Any, tmp_path: Path) -> None:
    changes = save_peft(tmp_path, {**bases[kind].weights}, targets)
    assert len({name.split(".")[-2] for name in changes}) == len(targets)
    agree(bases[kind], tmp_path, changes)


@pytest.mark.parametrize("target", ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "up_proj"])
def test_other_weights_of_latent_attention_and_its_experts_are_refused(target: str, bases: Any, tmp_path: Path) -> None:
    save_peft(tmp_path, bases["latent"].weights, ["o_proj", target])
    with pytest.raises(ModelError, match=rf"{target}.*not lora_A or lora_B of a known projection"):
        read(tmp_path, bases["latent"].config)


def test_an_adapter_of_another_attention_is_refused(bases: Any, tmp_path: Path) -> None:
    save_peft(tmp_path, bases["mistral"].weights, ["q_proj"])
    with pytest.raises(ModelError, match="the model has latent attention there; this is not the adapter's base"):
        read(tmp_path, bases["latent"].config)


def test_rank_stabilized_with_patterns(bases: Any, tmp_path: Path) -> None:
    """sqrt(r), with ranks and alphas of their own for some modules; the first expression that matches counts."""

    def rank(module: str) -> int:
        return 3 if module == "model.layers.1.self_attn.q_proj" else 5 if module.endswith("k_proj") else 8

    def scale(module: str, r: int) -> float:
        return (2 if ".layers.0.mlp." in module else 5) / r**0.5

    changes = save_peft(
        *(tmp_path, bases["mistral"].weights),
        ranks=rank,
        scale=scale,
        use_rslora=True,
        lora_alpha=5,
        rank_pattern={"^model.layers.1.self_attn.q_proj": 3, "k_proj": 5},
        alpha_pattern={r"layers\.0\.mlp\..*": 2, "gate_proj": 5},
    )
    agree(bases["mistral"], tmp_path, changes)


@pytest.mark.parametrize("params", [None, {"dim": 32}, {"lora": {"rank": 8, "scaling": 0.5}}], ids=str)
def test_native_files(params: Any, bases: Any, tmp_path: Path) -> None:
    """The factor is 2.0 unless params.json says otherwise. Rows of q and k are in pairs, whatever the base's order."""
    base = bases["mistral"]
    changes = save_peft(tmp_path / "hf", base.weights, lora_alpha=8)
    factor = 1 / (params or {}).get("lora", {}).get("scaling", 2.0)
    native = save_native(tmp_path / "hf", tmp_path / "native", HEAD_DIM, factor, params)
    agree(base, native, changes)
    agree(base, native / "lora.safetensors", changes)
    other = save_native_base(base.directory, tmp_path / "base")
    agree(base._replace(directory=other), native, changes)


def test_int8_equals_merged_weights_after_dequantization(bases: Any, tmp_path: Path) -> None:
    """In float32 over the dequantized weights of the base, plus the rounding of activations to 8 bits."""
    base = bases["mistral"]
    changes = save_peft(tmp_path, base.weights, lora_alpha=4)
    driver = network(base.directory, "int8")
    adapter = read(tmp_path, base.config, torch.bfloat16).pack()
    mine = driver.whole(TOKENS, None, adapter).log_softmax(-1)
    unadapted = driver.whole(TOKENS).log_softmax(-1)
    rounding = {name: _rounding(base.weights[name]) for name in changes}
    expected = base.merged({name: change + rounding[name] for name, change in changes.items()})
    plain = base.merged(rounding)
    own_error = (unadapted - plain).abs().mean()  # of the activations, without an adapter
    assert (mine - expected).abs().mean() < 2 * own_error
    assert (mine - plain).abs().mean() > 10 * own_error


def _rounding(weight: Tensor) -> Tensor:
    """What int8 with a scale for each row adds to a weight."""
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    return (weight / scale).round() * scale - weight


@pytest.fixture
def adapters(bases: Any, tmp_path: Path) -> list[Path]:
    """Four adapters of different ranks and targets."""
    base = bases["mistral"]
    for n, targets in enumerate((ALL, ATTENTION, ("down_proj", "lm_head"), ("q_proj", "up_proj"))):
        save_peft(tmp_path / str(n), base.weights, targets, seed=n, r=(8, 3, 16, 1)[n])
    return [tmp_path / str(n) for n in range(4)]


def mixed(driver: Driver, adapters: list[Lora | None]) -> list[Tensor]:
    """Logits of 16 sequences, the i-th with adapters[i % 5], computed together: prompts, then tokens, in steps."""
    riders = [driver.start(TOKENS[i : i + 20 + i], adapters[i % 5]) for i in range(16)]
    found: list[list[Tensor]] = [[] for _ in riders]
    while unfinished := [i for i, rider in enumerate(riders) if rider.done < len(rider.tokens)]:
        parts = [(riders[i], min(1 + 5 * (i % 3), len(riders[i].tokens) - riders[i].done)) for i in unfinished]
        for i, logits in zip(unfinished, driver.step(parts), strict=True):
            found[i].append(logits)
    return [torch.cat(parts) for parts in found]


def test_sixteen_mixed_requests_equal_each_alone(bases: Any, adapters: list[Path]) -> None:
    base = bases["mistral"]
    driver = network(base.directory)
    chosen = [None, *(read(path, base.config) for path in adapters)]
    for i, logits in enumerate(mixed(driver, chosen)):
        alone = driver.whole(TOKENS[i : i + 20 + i], None, chosen[i % 5])
        torch.testing.assert_close(logits, alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("fused", [True, False], ids=["fused", "by layer"])
@pytest.mark.parametrize("scheme", ["int8", "int4", "bfloat16"])
def test_compiled_kernels_give_the_bits_of_each_alone(
    scheme: str, fused: bool, bases: Any, adapters: list[Path]
) -> None:
    base = bases["mistral"]
    driver, alone = network(base.directory, scheme), network(base.directory, scheme)
    if fused:
        driver.compile()
    chosen = [None, *(read(path, base.config, torch.bfloat16).pack() for path in adapters)]
    for i, logits in enumerate(mixed(driver, chosen)):
        assert torch.equal(logits, alone.whole(TOKENS[i : i + 20 + i], None, chosen[i % 5]))
