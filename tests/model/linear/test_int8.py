"""The int8 scheme: rounding by hand, parts in any order, networks near their float32 selves."""

import pytest
import torch

from model.attention import choose
from model.errors import OptionError
from model.linear import schemes
from model.linear.int8 import Int8Linear
from model.network import weights
from model.network.transformer import Transformer
from model.sharding.shard import shard_of
from tests.model.driving import CPU, Driver, random_model, random_tensors, tiny
from tests.model.records import quantize


def test_weights_round_to_the_nearest_of_127_steps() -> None:
    rows, scales = quantize(torch.tensor([[1.0, -0.5, 0.3, 0.0], [0.0, 0.0, 0.0, 0.0], [-12.7, 0.1, 0.26, 12.7]]))
    assert rows.tolist() == [[127, -64, 38, 0], [0, 0, 0, 0], [-127, 1, 3, 127]]  # -63.5 goes to even
    assert scales.tolist() == pytest.approx([1 / 127, 0.0, 0.1])


def linear(weight: torch.Tensor, cuts: tuple[int, ...]) -> Int8Linear:
    made = Int8Linear(weight.shape[1], len(weight))
    for first, stop in zip((0, *cuts), (*cuts, len(weight)), strict=True):
        made.take(first, weight[first:stop])
    return made


def test_parts_may_come_in_any_order() -> None:
    torch.manual_seed(0)
    weight, x = torch.randn(40, 64), torch.randn(3, 64)
    made = Int8Linear(64, 40)
    for first, stop in ((24, 40), (0, 5), (5, 24)):
        made.take(first, weight[first:stop])
    assert torch.equal(made(x), linear(weight, ())(x))
    torch.testing.assert_close(made(x), x @ weight.T, rtol=0.05, atol=0.3)


@pytest.mark.parametrize("changes", [{}, {"tied_head": True}, {"n_experts": 4, "n_experts_per_token": 2}], ids=str)
def test_network_is_near_its_float32_self(changes: dict[str, object]) -> None:
    config = tiny((None, 9), **changes)
    with torch.device("meta"):
        model = Transformer(config, "int8")
    weights.load(
        model, shard_of(config), "half", random_tensors(config), torch.float32, CPU, lambda _: None, torch.bfloat16
    )
    assert model.tok_embeddings.weight.dtype == torch.bfloat16
    tokens = [(7 * i) % 64 for i in range(50)]
    attention = choose("auto", CPU)[1]
    logits = Driver(model.eval(), attention).whole(tokens)
    expected = Driver(random_model(config), attention).whole(tokens)
    assert torch.nn.functional.cosine_similarity(logits, expected).min() > 0.98
    assert torch.equal(Driver(model, attention, shuffle=1).whole(tokens, chunk=7), logits)


def test_auto_is_int8_or_a_files_own_blocks_on_a_cpu_unless_a_format_is_requested() -> None:
    assert schemes.choose("auto", "auto", "cpu", compiled=True).name == "int8"
    assert schemes.choose("auto", "auto", "cpu", kind="blocks", compiled=True).name == "int4"
    assert schemes.choose("auto", "float32", "cpu", compiled=True).name == "none"
    assert schemes.choose("auto", "auto", "cuda", compiled=True).name == "none"
    with pytest.raises(OptionError, match="int8 is for a CPU only, on a GPU choose one of: auto, none, fp8, int4"):
        schemes.choose("int8", "auto", "cuda", compiled=True)
    assert schemes.choose("int4", "auto", "cuda", compiled=True).name == "int4-weights"
    assert schemes.choose("auto", "auto", "cpu", compiled=False).name == "none"
    for name in ("int8", "int4"):
        with pytest.raises(OptionError, match=f"--quantize {name} on a CPU needs the compiled kernels, .* build them"):
            schemes.choose(name, "auto", "cpu", compiled=False)
    known = "auto, none, fp8, int8, int4, int4-weights"
    with pytest.raises(OptionError, match=f"--quantize int3 is not known, choose one of: {known}"):
        schemes.choose("int3", "auto", "cpu", compiled=True)
