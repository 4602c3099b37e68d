"""Where configurations say how weights are quantized, and which tensors belong to a weight."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from model.checkpoint.files import ShardFile
from model.checkpoint.quantized.config import Quantization, read_quantization
from model.checkpoint.quantized.parts import weight_parts
from model.errors import ModelError
from model.memory.plan import make_plan
from model.options import RunnerOptions
from tests.model.checkpoint.quantized_files import FORMS, VOCAB, save
from tests.model.driving import network

TOKENS = [(7 * i + 3) % VOCAB for i in range(20)]


def read(directory: Path, config: dict[str, Any], name: str = "config.json") -> Quantization | None:
    (directory / name).write_text(json.dumps(config))
    return read_quantization(directory)


def test_the_places_of_a_quantization(tmp_path: Path) -> None:
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    wanted = Quantization("fp8", floats=True, block=(128, 128))
    assert read(tmp_path, {}) is None
    assert read(tmp_path, {"quantization_config": fp8}) == wanted
    assert read(tmp_path, {"model_type": "mistral3", "text_config": {"quantization_config": fp8}}) == wanted
    assert read(tmp_path, {"text_config": {"compression_config": fp8}}) == wanted
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    assert read(tmp_path, {}) == Quantization("modelopt", 4, 16, floats=True)
    (tmp_path / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 128, "desc_act": True}))
    assert read(tmp_path, {}) == Quantization("gptq", 4, 128, ordered=True, zero_offset=1)


def test_the_native_place(tmp_path: Path) -> None:
    own = {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"}
    assert read(tmp_path, {"quantization": own}, "params.json") == Quantization("fp8", floats=True)
    compressed = FORMS["ct int4 g32"].config
    found = read(tmp_path, {"quantization": compressed}, "params.json")
    assert found == Quantization("compressed-tensors", 4, 32)
    found = read(tmp_path, {"quantization_config": FORMS["native nvfp4"].config}, "params.json")
    assert found == Quantization("compressed-tensors", 4, 16, floats=True)
    assert found.summary == "compressed-tensors, nvfp4"
    with pytest.raises(ModelError, match=r"quantization in params.json has 'mystery' \(1\), which Noria does not know"):
        read(tmp_path, {"quantization": {**own, "mystery": 1}}, "params.json")
    with pytest.raises(ModelError, match=r"quantization in params.json must be a JSON object, it is False"):
        read(tmp_path, {"quantization": False}, "params.json")
    with pytest.raises(ModelError, match="qformat_weight 'nvfp4'; Noria supports 'fp8_e4m3'"):
        read(tmp_path, {"quantization": {"qformat_weight": "nvfp4"}}, "params.json")


CT = FORMS["ct int4 g32"].config
GROUP = CT["config_groups"]["group_0"]
SECOND = {"group_0": GROUP, "group_1": {"weights": GROUP["weights"] | {"group_size": 64}}}
EIGHTS = {"group_0": {"weights": {"num_bits": 4, "type": "float", "group_size": 8}}}
THREE = {"group_0": {"weights": GROUP["weights"] | {"num_bits": 3}}}


@pytest.mark.parametrize(
    ("quantization", "message"),
    [
        ("gptq", "must be a JSON object, it is 'gptq'"),
        ({"quant_method": "bitsandbytes"}, "has quant_method 'bitsandbytes'; Noria supports fp8, compressed"),
        (CT | {"config_groups": THREE}, "has num_bits 3; Noria supports 4 and 8"),
        (CT | {"config_groups": SECOND}, "has config_groups that differ in group_size; Noria supports one for"),
        (CT | {"format": "mxfp8-quantized"}, "has format 'mxfp8-quantized'; Noria supports float-"),
        (CT | {"config_groups": EIGHTS}, "has 4-bit floats in groups of 8; Noria supports 16 .NVFP4. and 32 .MXFP4."),
        (
            FORMS["modelopt nvfp4"].config | {"quant_algo": "W4A8_AWQ"},
            "has quant_algo 'W4A8_AWQ'; Noria supports",
        ),
        (FORMS["modelopt nvfp4"].config | {"group_size": 32}, "has group_size 32; Noria supports 16"),
        (CT | {"sparsity_config": {"format": "sparse-24"}}, r"has sparse weights \(format 'sparse-24"),
        (CT | {"transform_config": {"R1": {}}}, "has a transform_config, rotations of activations"),
        (CT | {"moe_sparsity_config": {"method": "prune"}}, "has a moe_sparsity_config, layers of fewer experts"),
        (FORMS["awq g64"].config | {"version": "gemv"}, "has version 'gemv'; Noria supports 'gemm'"),
        (FORMS["awq g64"].config | {"group_size": -5}, "has group_size -5; it must be -1 or at least 1"),
        (FORMS["gptq g128"].config | {"checkpoint_format": "marlin"}, "'marlin'; Noria supports 'gptq' and 'gptq_v2'"),
        (FORMS["gptq g128"].config | {"dynamic": {"+:.*": {"bits": 8}}}, r"other bits for some layers \(dynamic\)"),
    ],
)
def test_what_is_not_supported_is_named(quantization: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"^quantization_config in config.json .*{message}"):
        read(tmp_path, {"quantization_config": quantization})


@pytest.mark.parametrize(
    ("found", "kind", "bits"),
    [
        (Quantization("fp8", floats=True), "fp8", None),
        (Quantization("compressed-tensors"), "int8", None),
        (Quantization("modelopt", 4, 16, floats=True), "fp4", None),
        (Quantization("gptq", 4, 128), "blocks4", 4.5),
        (Quantization("awq", 4, 128, symmetric=False), "blocks4", 5.0),
        (Quantization("gptq", 4, 32), "blocks", 4.5),
        (Quantization("gptq", 4, 128, ordered=True), "blocks8", 8.5),
        (Quantization("gptq", 4, 48), "blocks8", 8.5),
        (Quantization("gptq", 4, 0), "blocks4", 4.5),
        (Quantization("gptq", 8, 128, symmetric=False), "blocks8", 9.0),
    ],
)
def test_kinds_and_their_bits(found: Quantization, kind: str, bits: float | None) -> None:
    assert (found.kind, found.block_bits) == (kind, bits)


def test_a_plan_from_a_configuration_alone(tmp_path: Path) -> None:
    """Mistral 7B in AWQ: 4 + 32/32 bits a weight, the head 8.5, embeddings and norms 16."""
    config = {"model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32}
    config |= {"num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 32000, "rms_norm_eps": 1e-5}
    config |= {"max_position_embeddings": 32768, "dtype": "float16"}
    awq = {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": True}
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": awq}))
    plan = make_plan(tmp_path, RunnerOptions("", device="cpu"), None)
    head, others = 32000 * 4096, 7_241_732_096 - 2 * 32000 * 4096
    assert plan.scheme == "int4"
    assert plan.weights == pytest.approx(head * 2 + head * 8.5 / 8 + others * 5 / 8, rel=1e-6)
    on_gpu = make_plan(tmp_path, RunnerOptions("", device="cuda"), None)
    assert on_gpu.scheme == "int4"
    assert on_gpu.weights == pytest.approx(head * 4 + others * 4.375 / 8, rel=1e-6)


def test_fp8_and_others_on_a_gpu(tmp_path: Path) -> None:
    for name, scheme in (("fp8 tensor", "fp8"), ("ct int8 channel", "none"), ("gptq g32 symmetric", "none")):
        (tmp_path / name).mkdir()
        save(name, tmp_path / name)
        assert make_plan(tmp_path / name, RunnerOptions("", device="cuda"), None).scheme == scheme


def test_experts_and_what_is_not_used() -> None:
    module = "model.layers.0.block_sparse_moe.experts.3.w1"
    roles = {"qweight": "I32", "qzeros": "I32", "scales": "F16", "g_idx": "I32"}
    more = {"model.layers.0.self_attn.k_scale": "F32", "model.layers.0.self_attn.q_proj.input_scale": "F32"}
    dtypes = {**{f"{module}.{role}": dtype for role, dtype in roles.items()}, **more}
    (found,) = weight_parts([ShardFile(Path("a"), dtypes, dict.fromkeys(dtypes, (1, 1)))])
    assert (found.name, found.form, {*found.parts}) == (
        "layers.0.feed_forward.experts.3.w1.weight",
        "qweight",
        {*roles},
    )


@pytest.mark.parametrize(
    ("dtypes", "message"),
    [
        (
            {"weight": "F8_E5M2", "weight_scale": "F32"},
            "dtype 'F8_E5M2'; Noria supports BF16, F16, F32, F8_E4M3, I8",
        ),
        ({"weight": "F8_E4M3", "weight_scale_inv": "U8"}, "weight_scale_inv of .* has dtype 'U8'; Noria supports BF16"),
        ({"weight": "BF16", "weight_scale": "F32"}, "in BF16 has a weight_scale, which cannot belong to it"),
        ({"weight_packed": "U8", "weight_scale": "F8_E4M3"}, "has weight_packed, but no weight_global_scale; download"),
        (
            {"weight_packed": "U8", "weight_scale": "BF16"},
            "weight_scale of .* has dtype 'BF16'; Noria supports F8",
        ),
        ({"weight": "U8", "weight_scale": "F8_E4M3"}, "has weight, but no weight_scale_2; download"),
        (
            {"weight_packed": "U8", "weight_scale": "U8", "weight_shape": "I64"},
            "has a weight_shape, which cannot",
        ),
        ({"weight_scale": "F32"}, "has only weight_scale; download the model again"),
        ({"weight": "I8"}, "is in I8, but has no scale"),
    ],
)
def test_parts_that_make_no_weight(dtypes: dict[str, str], message: str) -> None:
    named = {f"model.layers.0.mlp.up_proj.{role}": dtype for role, dtype in dtypes.items()}
    with pytest.raises(ModelError, match=message):
        weight_parts([ShardFile(Path("a"), named, dict.fromkeys(named, (1, 1)))])


@pytest.mark.parametrize("name", ["fp8 blocks", "awq g64", "ct int8 channel"])
def test_plain_weights_among_quantized_ones_and_parts_in_other_files(name: str, tmp_path: Path) -> None:
    """q of a layer is plain, as modules_to_not_convert has it, and all scales lie in a second file."""
    model = save(name, tmp_path)
    found = load_file(tmp_path / "model.safetensors")
    plain = "model.layers.0.self_attn.q_proj"
    found = {key: part for key, part in found.items() if not key.startswith(f"{plain}.")}
    parameter = model.get_parameter(f"{plain}.weight")
    parameter.data = parameter.detach().bfloat16().float()
    found[f"{plain}.weight"] = parameter.detach().bfloat16()
    apart = {key for key in found if "scale" in key}
    files = {"model-00001-of-00002.safetensors": {*found} - apart, "model-00002-of-00002.safetensors": apart}
    (tmp_path / "model.safetensors").unlink()
    for file, keys in files.items():
        save_file({key: found[key] for key in keys}, tmp_path / file)
    with torch.no_grad():
        wanted = model(torch.tensor([TOKENS])).logits[0]
    for scheme, allowed in (("none", 1e-4), ("int4" if name == "awq g64" else "int8", 0.5)):
        torch.testing.assert_close(network(tmp_path, scheme).whole(TOKENS), wanted, rtol=0, atol=allowed)
