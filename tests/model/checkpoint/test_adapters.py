"""Files of adapters: what is read, and every fault with its message."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.checkpoint.adapters.open import open_adapter
from model.config.model import ModelConfig
from model.network.adapters import check_shapes, place
from tests.model.checkpoint.adapter_files import save_native, save_peft
from tests.model.checkpoint.faults import fault
from tests.model.driving import CPU, EXPERTS, tiny

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model.model.layers.0"
Q = f"{PREFIX}.self_attn.q_proj"
SHAPES = {"q_proj": (32, 32), "k_proj": (16, 32), "v_proj": (16, 32), "o_proj": (32, 32)}
FEED_FORWARD = {"gate_proj": (48, 32), "up_proj": (48, 32), "down_proj": (32, 48)}
BASE = {
    f"model.layers.{n}.{part}.{name}.weight": torch.empty(shape)
    for n in (0, 1)
    for part, shapes in (("self_attn", SHAPES), ("mlp", FEED_FORWARD))
    for name, shape in shapes.items()
} | {"lm_head.weight": torch.empty(64, 32)}
"""The shapes of `tiny` under Hugging Face's names."""


@pytest.fixture
def peft(tmp_path: Path) -> Path:
    save_peft(tmp_path / "adapter", BASE)
    return tmp_path / "adapter"


def configure(directory: Path, **changes: Any) -> None:
    path = directory / CONFIG
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def change(directory: Path, edit: Callable[[dict[str, Tensor]], Any], name: str = WEIGHTS) -> None:
    tensors = load_file(directory / name)
    edit(tensors)
    save_file(tensors, directory / name)


def read(path: Path, config: ModelConfig | None = None, dtype: torch.dtype = torch.float32) -> Any:
    config, file = config or tiny(), open_adapter(path)
    check_shapes(file, config)
    return place(file, config, dtype, CPU)


def test_all_targets_in_the_parts_of_fused_projections(peft: Path) -> None:
    file, adapter = open_adapter(peft), read(peft)
    assert len(file.pairs) == 2 * 7 + 1
    assert file.n_values == 8 * sum(sum(weight.shape) for weight in BASE.values())
    assert adapter.n_bytes == 4 * file.n_values
    assert [sorted(layer) for layer in adapter.layers] == [["w13", "w2", "wo", "wqkv"]] * 2
    wqkv = adapter.layers[1]["wqkv"]
    assert wqkv.a.shape == (24, 32)
    assert [(first, rank, tuple(b.shape)) for first, rank, b in wqkv.parts] == [
        *((0, 0, (32, 8)), (32, 8, (16, 8)), (48, 16, (16, 8)))
    ]
    assert [(part.first, part.rank) for part in adapter.layers[0]["w13"].parts] == [(0, 0), (48, 8)]
    assert adapter.head is not None
    tensors = load_file(peft / WEIGHTS)
    torch.testing.assert_close(adapter.head.parts[0].b, 2.0 * tensors["base_model.model.lm_head.lora_B.weight"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (".weight", ".default.weight"),
        ("base_model.model.model.", "base_model.model.model.language_model."),
        ("base_model.model.", "base_model.model.language_model."),
        ("base_model.model.", ""),
    ],
)
def test_names_of_other_writers(old: str, new: str, peft: Path) -> None:
    plain = read(peft)
    tensors = load_file(peft / WEIGHTS)
    save_file({name.replace(old, new): tensor for name, tensor in tensors.items()}, peft / WEIGHTS)
    assert torch.equal(read(peft).layers[1]["wqkv"].a, plain.layers[1]["wqkv"].a)


def test_a_tied_head_may_have_an_adapter(tmp_path: Path) -> None:
    save_peft(tmp_path, BASE, ["lm_head"])
    adapter = read(tmp_path, tiny(tied_head=True))
    assert adapter.head is not None
    assert not any(adapter.layers)


def test_the_head_of_the_base_beside_an_adapter_of_it_is_not_read(peft: Path) -> None:
    """PEFT saves it whenever target_modules has lm_head."""
    plain = read(peft)
    change(peft, lambda tensors: tensors.update({"base_model.model.lm_head.base_layer.weight": torch.ones(64, 32)}))
    assert len(open_adapter(peft).pairs) == 2 * 7 + 1
    assert torch.equal(read(peft).head.parts[0].b, plain.head.parts[0].b)


def shortly(value: object) -> str:
    return str(value)[:60]


FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"peft_type": "LOHA"}, "peft_type 'LOHA'; Noria supports 'LORA'"),
    ({"use_dora": True}, "'use_dora': True, which Noria does not support"),
    ({"bias": "lora_only"}, "bias 'lora_only'; Noria supports 'none'"),
    ({"modules_to_save": ["embed_tokens"]}, "'modules_to_save': ['embed_tokens']"),
    ({"use_something_new": True}, "'use_something_new': True"),
    ({"init_lora_weights": "pissa_niter_4"}, "'pissa_niter_4', which changes the weights of the base"),
    ({"r": 4}, "has rank 8, adapter_config.json says 4"),
    ({"rank_pattern": {"q_proj": 4}}, "q_proj.lora_A.weight' has rank 8, adapter_config.json says 4"),
    ({"alpha_pattern": [4]}, "an object in alpha_pattern, it has [4]"),
    ({"alpha_pattern": {"(q_proj": 8}}, "has the expression '(q_proj'"),
    ({"alpha_pattern": {"(.*)*x": 8}}, "has the expression '(.*)*x'; Noria supports names of modules"),
    ({"alpha_pattern": {".*.*.*x": 8}}, "at most 2 repeats"),
    ({"alpha_pattern": {"q" * 201: 8}}, "at most 200 characters"),
    ({"alpha_pattern": {"q_proj": -1}}, "above 0 in q_proj, it has -1"),
    ({"alpha_pattern": {"q_proj": 10**400}}, "a finite number in q_proj, it has inf"),
    ({"lora_alpha": None}, "a finite number in lora_alpha, it has None"),
    ({"lora_alpha": 0}, "a number above 0 in lora_alpha, it has 0"),
]


@pytest.mark.parametrize(("changes", "message"), FIELDS, ids=shortly)
def test_fields_that_are_refused(changes: dict[str, Any], message: str, peft: Path) -> None:
    configure(peft, **changes)
    found = fault(lambda: read(peft))
    assert found is not None
    assert message in found
    assert CONFIG in found


@pytest.mark.parametrize(
    "changes",
    [
        {"target_modules": "all-linear", "layers_to_transform": [0, 1], "rank_pattern": {"down_proj": 8}},
        {"init_lora_weights": "gaussian", "peft_version": "0.19.1", "arrow_config": None, "eva_config": {"rho": 2.0}},
        {"alpha_pattern": {r"layers\.\d+\.self_attn\.(q|k)_proj": 4}},
    ],
    ids=str,
)
def test_fields_that_pass(changes: dict[str, Any], peft: Path) -> None:
    configure(peft, **changes)
    read(peft)


def put(name: str, value: Tensor) -> Callable[[dict[str, Tensor]], Any]:
    return lambda tensors: tensors.update({name: value})


UNKNOWN = "which is not lora_A or lora_B of a known projection; Noria supports LoRA of attention"
OTHERS = (
    *(f"{Q}.lora_magnitude_vector", f"{Q}.lora_B.bias", "base_model.model.lm_head.weight"),
    *("base_model.model.model.embed_tokens.weight", f"{PREFIX}.block_sparse_moe.experts.0.w1.lora_A.weight"),
    *(f"base_model.model.{name}.lora_A.weight" for name in ("vision_tower.layers.0.q", "transformer.h.0.c_attn")),
)
"""DoRA, a bias, a whole weight, embeddings, experts, an image encoder, another network."""
TENSORS: list[tuple[Callable[[dict[str, Tensor]], Any], str]] = [
    *((put(name, torch.ones(8, 32)), f"{name}', {UNKNOWN}") for name in OTHERS),
    (lambda tensors: tensors.pop(f"{Q}.lora_B.weight"), "q_proj.lora_A.weight', but no lora_B"),
    (put(f"{Q}.lora_A.default.weight", torch.ones(8, 32)), "two tensors for A of layers.0.attention.wq.weight"),
    (lambda tensors: tensors.clear(), "has no tensors"),
    (put(f"{Q}.lora_A.weight", torch.ones(4, 32)), "shape [4, 32] and its lora_B [32, 8]; expected [r, n_in]"),
    (put(f"{Q}.lora_A.weight", torch.ones(8, 40)), "shapes [8, 40] and [32, 8], the model needs [8, 32] and"),
    (put(f"{Q}.lora_A.weight", torch.ones(8, 32, dtype=torch.int8)), "has dtype I8; Noria supports BF16, F16, F32"),
    (put(f"{Q}.lora_A.weight", torch.full((8, 32), float("nan"))), "lora_A.weight' and its lora_B reach nan with the"),
    (put(f"{Q}.lora_B.weight", torch.full((32, 8), float("inf"))), "reach inf with the scale 2; in float32 Noria sup"),
]


@pytest.mark.parametrize(("edit", "message"), TENSORS, ids=lambda value: value if isinstance(value, str) else "")
def test_tensors_that_are_refused(edit: Callable[[dict[str, Tensor]], Any], message: str, peft: Path) -> None:
    change(peft, edit)
    found = fault(lambda: read(peft))
    assert found is not None
    assert message in found
    assert WEIGHTS in found


def test_ranks_have_a_limit(tmp_path: Path) -> None:
    save_peft(tmp_path, BASE, ["q_proj"], r=257)
    assert "has rank 257; Noria supports ranks from 1 to 256" in (fault(lambda: read(tmp_path)) or "")
    save_peft(tmp_path, BASE, ["q_proj"], r=256)
    read(tmp_path)


def test_bases_that_do_not_match(peft: Path, tmp_path: Path) -> None:
    assert "the model has 1 layers; this is not the adapter's base" in (fault(lambda: read(peft, tiny((None,)))) or "")
    assert "the model has experts there" in (fault(lambda: read(peft, tiny(**EXPERTS))) or "")
    assert "the model needs [8, 64]" in (fault(lambda: read(peft, tiny(dim=64))) or "")
    save_peft(tmp_path / "attention", BASE, ["q_proj", "o_proj"])
    read(tmp_path / "attention", tiny(**EXPERTS))


def test_values_beyond_float16(peft: Path) -> None:
    change(peft, put(f"{Q}.lora_B.weight", torch.full((32, 8), 60000.0)))
    read(peft, dtype=torch.bfloat16)
    assert "in float16 Noria supports 6.55e+04" in (fault(lambda: read(peft, dtype=torch.float16)) or "")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapter_whose_outputs_no_norm_can_square_is_refused(dtype: torch.dtype, peft: Path) -> None:
    """All of its values are finite in the format, also those of B times the scale."""
    ones = {f"{Q}.lora_A.weight": torch.ones(8, 32), f"{Q}.lora_B.weight": torch.ones(32, 8)}
    change(peft, lambda tensors: tensors.update(ones))
    configure(peft, lora_alpha=8 * 2.0**56)  # 2^56 * 8 * 32 = 2^64, whose square is beyond float32
    assert "and its lora_B reach 1.84e+19 with the scale 7.21e+16; in " in (
        fault(lambda: read(peft, dtype=dtype)) or ""
    )
    configure(peft, lora_alpha=8 * 2.0**55)
    read(peft, dtype=dtype)
    configure(peft, lora_alpha=1e300)
    assert "reach inf with the scale 1.25e+299; in " in (fault(lambda: read(peft, dtype=dtype)) or "")


NATIVE_FAULTS: list[tuple[Any, str]] = [
    ({"lora": {"rank": 16}}, "has rank 8, params.json says 16"),
    ({"lora": {"scaling": 0}}, "above 0 in scaling, it has 0"),
    ({"lora": [1]}, "an object in lora, it has [1]"),
]


@pytest.mark.parametrize(("params", "message"), NATIVE_FAULTS, ids=shortly)
def test_native_parameters_that_are_refused(params: Any, message: str, peft: Path, tmp_path: Path) -> None:
    native = save_native(peft, tmp_path / "native", 8, 1.0, params)
    assert message in (fault(lambda: read(native)) or "")


def test_a_native_tensor_that_is_refused(peft: Path, tmp_path: Path) -> None:
    native = save_native(peft, tmp_path / "native", 8, 1.0)
    change(native, put("layers.0.attention.q_proj.lora_A.weight", torch.ones(8, 32)), "lora.safetensors")
    assert UNKNOWN in (fault(lambda: read(native)) or "")


def test_directories_without_an_adapter(peft: Path, tmp_path: Path) -> None:
    assert "there is no adapter 'absent'" in (fault(lambda: open_adapter(tmp_path / "absent")) or "")
    assert "is not an adapter: expected" in (fault(lambda: open_adapter(tmp_path)) or "")
    assert "is not an adapter" in (fault(lambda: open_adapter(peft / CONFIG)) or "")
    (peft / WEIGHTS).rename(peft / "adapter_model.bin")
    assert "only as pickle (adapter_model.bin)" in (fault(lambda: open_adapter(peft)) or "")
    (peft / "adapter_model.bin").unlink()
    assert f"has no {WEIGHTS}" in (fault(lambda: open_adapter(peft)) or "")


def test_a_pipe_is_not_opened(peft: Path) -> None:
    """It would block until somebody writes to it. Other files of a training are no adapter."""
    (peft / "optimizer.pt").touch()
    (peft / CONFIG).unlink()
    os.mkfifo(peft / CONFIG)
    assert f"has no {CONFIG}" in (fault(lambda: open_adapter(peft)) or "")


def test_damaged_files(peft: Path) -> None:
    whole = (peft / WEIGHTS).read_bytes()
    assert open_adapter(peft / WEIGHTS).pairs.keys() == open_adapter(peft).pairs.keys()
    (peft / WEIGHTS).write_bytes(whole[:-8])
    assert f"{WEIGHTS} is damaged" in (fault(lambda: read(peft)) or "")
    (peft / WEIGHTS).write_bytes(whole)
    (peft / CONFIG).write_text("[]")
    assert f"{CONFIG} must contain a JSON object" in (fault(lambda: read(peft)) or "")


def test_messages_name_no_path(peft: Path, tmp_path: Path) -> None:
    """A client of POST /v1/load_lora_adapter reads them."""
    (peft / WEIGHTS).unlink()
    for path in (peft, tmp_path / "absent"):
        assert str(tmp_path) not in (fault(lambda path=path: open_adapter(path)) or str(tmp_path))  # type: ignore[misc]
