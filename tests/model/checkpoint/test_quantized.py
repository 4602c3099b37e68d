"""Quantized safetensors. Oracle: transformers on weights that follow from each format's definition, in float32."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.checkpoint import stored as module
from model.checkpoint.open import open_checkpoint
from model.checkpoint.quantized.config import Fp4
from model.checkpoint.quantized.weights import stored_matrix
from model.checkpoint.stored import Stored
from model.kernels.cpu import native, packed
from model.kernels.cpu.functions import Kernels
from model.linear.selection import PROJECTIONS
from model.loading import load_from
from model.memory.plan import make_plan
from model.options import RunnerOptions
from tests.model.attention.attending import best
from tests.model.checkpoint.quantized_files import DIM, FORMS, VOCAB, matrix, quantization, save
from tests.model.checkpoint.quantized_files import packed as packed_form
from tests.model.driving import CPU, Driver, network, storages

TOKENS = [(7 * i + 3) % VOCAB for i in range(40)]
"""More than the window of 16."""


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


IN_BLOCKS = [name for name in FORMS if any(word in name for word in ("awq", "gptq", "int4", "packed g"))]
ORDERED = [name for name in IN_BLOCKS if "ordered" in name]


@pytest.mark.parametrize("name", [name for name in IN_BLOCKS if name not in ORDERED])
def test_groups_become_blocks_with_the_same_integers(name: str) -> None:
    """Only a minimum, -zero * scale, is rounded to float16; without zeros, or with whole ones in the middle, nothing.

    An 8-bit value of 0 means -128, which the kernels take for -127: that is theirs, not the block's.
    """
    found, wanted = matrix(name, 304, 256)
    blocks = found.blocks()
    assert blocks is not None
    assert blocks.quants.shape[2] * 8 == 32 * quantization(FORMS[name]).bits
    is_symmetric = quantization(FORMS[name]).symmetric
    assert (blocks.mins is None) == is_symmetric
    if is_symmetric:
        assert torch.equal(blocks.floats(), wanted)
    else:
        assert blocks.mins is not None
        error, values = ((part).unflatten(1, (-1, 32)).abs() for part in (blocks.floats() - wanted, wanted))
        rounding = blocks.mins.float().abs()[:, :, None] * 2**-11 + 2**-25  # of float16, also where it is subnormal
        assert (error <= rounding + values * 2**-20).all()


@pytest.mark.parametrize("name", ORDERED)
def test_a_block_of_channels_in_another_order_has_no_one_scale(name: str) -> None:
    assert matrix(name, 304, 256)[0].blocks() is None


@pytest.mark.parametrize("name", ["ct int8 channel", "ct int8 tensor", "ct int8 packed channel"])
def test_int8_with_a_scale_an_output_stays_as_it_is(name: str, kernels: Kernels) -> None:
    """The packed bytes are those that the kernels make of the same values as floats, where a row has 127 steps."""
    found, wanted = matrix(name, 48, 224)
    own = found.by_row(torch.int8)
    assert own is not None
    values, scales = own
    assert torch.equal(values.float() * scales[:, None], wanted)
    values = values.clamp(min=-127)
    values[:, 5] = 127
    stored, quantized = packed.int8(48, 224), packed.int8(48, 224)
    packed.put_int8(stored, 20, values[20:], scales[20:])
    packed.put_int8(stored, 0, values[:20], scales[:20])
    kernels.quantize(quantized, 0, values.float())
    assert torch.equal(stored.packed, quantized.packed)
    assert stored.scales is not None
    assert torch.equal(stored.scales[:48], scales)


@pytest.mark.parametrize("shape", [(16, 2), (1,)])
def test_zeros_of_a_packed_weight_may_be_signed_bytes(shape: tuple[int, ...]) -> None:
    """compressed-tensors writes them for a symmetric weight, as it does one zero for all. 0 is the middle."""
    form = FORMS["ct int4 g32"]
    parts, wanted = form.make(np.random.default_rng(0), 16, 64)
    parts["weight_zero_point"] = torch.zeros(shape, dtype=torch.int8)
    assert torch.equal(stored_matrix("weight_packed", parts, quantization(form)).floats(), wanted)


@pytest.mark.parametrize(("width", "n_rows"), [(4, 48), (64, 16)])
def test_pieces_of_a_weight_have_whole_blocks_of_16_outputs(
    width: int, n_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels store 16 outputs together. A piece of wide rows has more values than the limit."""
    monkeypatch.setattr(module, "VALUES_AT_ONCE", 200)
    pieces = [len(piece) for piece in Stored(torch.zeros(100, width)).pieces()]
    assert pieces == [*[n_rows] * (100 // n_rows), 4]


@pytest.mark.parametrize("value", [[0.0], [-1.0], [float("inf")], [float("nan")], [1.0, 2.0]], ids=str)
def test_the_scale_of_a_whole_matrix_is_one_number_above_0(value: list[float]) -> None:
    form = FORMS["ct nvfp4"]
    parts, _ = form.make(np.random.default_rng(0), 16, 32)
    parts["weight_global_scale"] = torch.tensor(value)
    with pytest.raises(ValueError, match=r"its weight_global_scale is .*, expected one number above 0"):
        stored_matrix("weight_packed", parts, quantization(form))


@pytest.mark.parametrize(("name", "group"), [("ct nvfp4", 16), ("ct mxfp4", 32), ("modelopt nvfp4", 16)])
def test_rows_of_4_bit_floats_are_whole_groups(name: str, group: int) -> None:
    form = FORMS[name]
    parts, _ = form.make(np.random.default_rng(0), 16, 64)
    role = next(iter(parts))
    with pytest.raises(ValueError, match=f"its {role} has rows of 40 values, expected a multiple of {group}"):
        stored_matrix(role, parts | {role: parts[role][:, :20]}, quantization(form))
    with pytest.raises(ValueError, match=rf"its weight_scale has shape \[8, {64 // group}\], expected \[16, "):
        stored_matrix(role, parts | {"weight_scale": parts["weight_scale"][:8]}, quantization(form))


@pytest.mark.parametrize(("name", "code"), [("ct nvfp4", 127), ("ct mxfp4", 253)])
def test_scales_of_4_bit_floats_are_checked_while_the_weight_has_its_name(name: str, code: int) -> None:
    """Later it may be one of several that are packed together."""
    form = FORMS[name]
    parts, _ = form.make(np.random.default_rng(0), 16, 64)
    role, scales = next(iter(parts)), parts["weight_scale"]
    scales.view(torch.uint8)[3, 1] = code
    with pytest.raises(ValueError, match="a scale is not finite, or negative, or too large"):
        stored_matrix(role, parts, quantization(form))


@pytest.mark.parametrize("name", ["native fp8", "fp8 tensor", "ct fp8 channel"])
def test_fp8_stays_fp8_with_a_scale_an_output(name: str) -> None:
    found, wanted = matrix(name, 48, 256)
    layer = fp8_layer(found)
    assert torch.equal(layer.dequantize(layer.weights, slice(0, 48)), wanted)
    assert torch.equal(layer.weights.values, found[:].values)


@pytest.mark.parametrize("name", ["fp8 blocks", "ct fp8 blocks"])
def test_fp8_blocks_are_rounded_once_more_with_a_scale_an_output(name: str) -> None:
    found, wanted = matrix(name, 304, 256)
    layer = fp8_layer(found)
    again = layer.dequantize(layer.weights, slice(0, 304))
    assert 0.005 < (again - wanted).norm() / wanted.norm() < 0.03


def fp8_layer(found: Stored) -> Any:
    layer: Any = PROJECTIONS["fp8"](found.shape[1], len(found))
    layer.assign_weights(layer.allocate((), torch.float32, CPU))
    layer.take(0, found[:10])
    layer.take(10, found[10:])
    return layer


@pytest.mark.parametrize("name", ["awq g64", "awq g128", "gptq g128", "gptq channel symmetric", "ct int4 g64 zeros"])
def test_four_bits_stay_as_they_are_on_a_gpu(name: str) -> None:
    """Only scales are rounded, to bfloat16."""
    found, wanted = matrix(name, 304, 256)
    layer: Any = PROJECTIONS["int4-weights"](256, 304)
    layer.assign_weights(layer.allocate((), torch.float32, CPU))
    layer.take(0, found)
    again = layer.dequantize(layer.weights, slice(0, 304))
    assert ((again - wanted).abs() <= wanted.abs() * 2**-8).all()


@pytest.mark.parametrize("name", ["gptq g32 symmetric", "gptq g64 ordered", "ct int4 g32"])
def test_other_groups_are_rounded_again_on_a_gpu(name: str) -> None:
    found, wanted = matrix(name, 304, 256)
    assert found.four_bits(64) is None
    layer: Any = PROJECTIONS["int4-weights"](256, 304)
    layer.assign_weights(layer.allocate((), torch.float32, CPU))
    layer.take(0, found)
    assert (layer.dequantize(layer.weights, slice(0, 304)) - wanted).norm() / wanted.norm() < 0.1


AUTO = {"awq": "int4", "gptq": "int4", "ct int4": "int4", "ct int8 packed g": "int4"}
"""What --quantize auto is on a CPU; int8 for all others."""


EIGHT = ("ct int4 g64 ordered", "ct int8 packed g128 zeros", "gptq g64 ordered", "gptq 8 bits g32")
"""The forms whose groups a scheme keeps with 8 bits."""
FP4 = ("ct nvfp4", "ct mxfp4", "native nvfp4", "modelopt nvfp4")
OWN = ("native fp8", "fp8 blocks", "ct int8 channel", "ct int4 g32", "awq g64", "gptq g128")


@pytest.mark.parametrize("name", [*OWN, *EIGHT, *FP4])
@pytest.mark.skipif(native.kernels() is None, reason="the choice is for compiled kernels")
def test_a_cpu_serves_the_nearest_scheme_and_says_so(name: str, tmp_path: Path) -> None:
    wanted = expected(tmp_path, name)
    nearest = next((scheme for start, scheme in AUTO.items() if name.startswith(start)), "int8")
    options = RunnerOptions(str(tmp_path), device="cpu", cache_memory=2**22, max_step_tokens=64, max_sequences=2)
    found = open_checkpoint(tmp_path)
    runner = load_from(found, options, lambda *_: None)
    about = runner.info.description
    stored = "8 bits in groups of 32" if name in EIGHT else "fp4, others as int8" if name in FP4 else nearest
    assert (about["quantize"], about["checkpoint"]) == (nearest, f"{found.summary}; served as {stored}")
    plan = make_plan(tmp_path, options, 2**30)
    assert (plan.scheme, plan.stored) == (nearest, stored)
    assert storages(runner.head.model) == pytest.approx(plan.weights, rel=0.03)
    driver = Driver(runner.head.model, best())
    logits = driver.whole(TOKENS)
    assert torch.nn.functional.cosine_similarity(logits.log_softmax(dim=-1), wanted).median() > 0.98
    assert torch.equal(driver.whole(TOKENS, chunk=7), logits)


@pytest.mark.parametrize(
    ("most", "other"),
    [("ct int4 g32", "ct int8 packed g32"), ("ct int4 g32", "ct fp8 channel"), ("ct nvfp4", "ct fp8 channel")],
)
def test_one_file_has_weights_of_4_and_of_8_bits(most: str, other: str, tmp_path: Path) -> None:
    """Attention with 8 bits, the rest with 4, in two groups of compressed-tensors. Oracle: the dequantized weights."""
    form = {**FORMS, "ct int8 packed g32": packed_form(32, 8)}[other]
    model, random = save(most, tmp_path), np.random.default_rng(1)
    stored = load_file(tmp_path / "model.safetensors")
    for name, parameter in model.named_parameters():
        if "self_attn" in name:
            module = name.removesuffix("weight")
            stored = {key: part for key, part in stored.items() if not key.startswith(module)}
            parts, parameter.data = form.make(random, *parameter.shape)
            stored |= {module + role: part.contiguous() for role, part in parts.items()}
    save_file(stored, tmp_path / "model.safetensors")
    config = json.loads((tmp_path / "config.json").read_text())
    quantization = config["quantization_config"]
    second = form.config["config_groups"]["group_0"] | {"format": form.config["format"]}
    first = quantization["config_groups"]["group_0"] | {"format": quantization["format"]}
    quantization |= {"format": "mixed-precision", "config_groups": {"group_0": first, "group_1": second}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with torch.no_grad():
        wanted = model(torch.tensor([TOKENS])).logits[0].log_softmax(-1)
    served = network(tmp_path).whole(TOKENS).log_softmax(-1)
    torch.testing.assert_close(served, wanted, rtol=0, atol=1e-4)
    own = sum(p.numel() for name, p in model.named_parameters() if "mlp" in name)
    total = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and "embed_tokens" not in name)
    bits = open_checkpoint(tmp_path).own_bits
    if most == "ct nvfp4":
        assert isinstance(bits, Fp4)
        assert bits.share == own / (total - DIM * VOCAB)
    else:
        assert bits == pytest.approx((4.5 * own + 8.5 * (total - own)) / total, rel=0.05)
