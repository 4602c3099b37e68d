"""Broken safetensors checkpoints: each is refused in one line that says what was found and what to do."""

import json
import re
import struct
from collections.abc import Callable, Iterator
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from model.checkpoint.resolve import resolve
from model.loading import create
from model.tokenizers.load import load_tokenizer
from tests.model.checkpoint.faults import fault
from tests.model.checkpoint.quantized_files import save

Break = Callable[[Path], None]
MODEL, INDEX = "model.safetensors", "model.safetensors.index.json"
Q_PROJ = "model.layers.0.self_attn.q_proj."


def start(directory: Path, quantize: str = "auto") -> str | None:
    """The fault of starting this model, None if it starts."""

    def load() -> None:
        create(lambda *_: None, model=str(resolve(str(directory))), device="cpu", quantize=quantize, cache_memory=2**22)

    return fault(load)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The directory of a checkpoint that starts, by the name of its form, or "plain"."""
    made: dict[str, Path] = {}

    def directory(name: str) -> Path:
        if name not in made:
            made[name] = tmp_path_factory.mktemp("whole")
            model = save("ct int8 channel" if name == "plain" else name, made[name])
            if name == "plain":
                model.bfloat16().save_pretrained(made[name])
            assert start(made[name]) is None
        return made[name]

    return directory


def tensors(change: Callable[[dict[str, Tensor]], object]) -> Break:
    """A checkpoint whose tensors are changed."""

    def write(directory: Path) -> None:
        found = load_file(directory / MODEL)
        change(found)
        save_file(found, directory / MODEL)

    return write


def without(name: str) -> Break:
    return tensors(lambda found: found.pop(name))


def replaced(name: str, change: Callable[[Tensor], Tensor]) -> Break:
    return tensors(lambda found: found.update({name: change(found[name]).contiguous()}))


def value(name: str, value: float, at: int = 5) -> Break:
    """A tensor with another value at one place."""

    def change(tensor: Tensor) -> Tensor:
        tensor.view(-1)[at] = value
        return tensor

    return replaced(name, change)


def config(**changes: Any) -> Break:
    def write(directory: Path) -> None:
        path = directory / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return write


def quantized(**changes: Any) -> Break:
    """Other fields in quantization_config; None removes one."""

    def write(directory: Path) -> None:
        path = directory / "config.json"
        found = json.loads(path.read_text())
        found["quantization_config"] |= changes
        path.write_text(json.dumps(found))

    return write


def scheme(**changes: Any) -> Break:
    """Other fields in the weights of the only group of compressed-tensors."""

    def write(directory: Path) -> None:
        found = json.loads((directory / "config.json").read_text())
        weights = found["quantization_config"]["config_groups"]["group_0"]["weights"] | changes
        quantized(config_groups={"group_0": {"weights": weights}})(directory)

    return write


def header(name: str, **changes: Any) -> Break:
    """A header that lies about one tensor."""

    def write(directory: Path) -> None:
        data = (directory / MODEL).read_bytes()
        length = int.from_bytes(data[:8], "little")
        found = json.loads(data[8 : 8 + length])
        found[name] |= {key: made(found[name]) if callable(made) else made for key, made in changes.items()}
        changed = json.dumps(found).encode()
        (directory / MODEL).write_bytes(struct.pack("<Q", len(changed)) + changed + data[8 + length :])

    return write


def index(name: str) -> Break:
    """An index that names another file for a tensor."""

    def write(directory: Path) -> None:
        names = load_file(directory / MODEL)
        files = dict.fromkeys(names, MODEL) | {"model.norm.weight": name}
        (directory / INDEX).write_text(json.dumps({"weight_map": files}))

    return write


def twice(directory: Path) -> None:
    index("model-2.safetensors")(directory)
    save_file({"model.norm.weight": torch.ones(128)}, directory / "model-2.safetensors")


def pickled(directory: Path) -> None:
    (directory / MODEL).unlink()
    (directory / "pytorch_model.bin").write_bytes(b"\x80\x02}q\x00.")


def cut(size: int) -> Break:
    def write(directory: Path) -> None:
        (directory / MODEL).write_bytes((directory / MODEL).read_bytes()[:size])

    return write


def folder(directory: Path) -> None:
    (directory / MODEL).unlink()
    (directory / MODEL).mkdir()


def second_group(**changes: Any) -> Break:
    """Another group of compressed-tensors, whose weights differ from those of the first."""

    def write(directory: Path) -> None:
        found = json.loads((directory / "config.json").read_text())
        first = found["quantization_config"]["config_groups"]["group_0"]
        second = {**first, "weights": first["weights"] | changes}
        quantized(config_groups={"group_0": first, "group_1": second})(directory)

    return write


NORM = "model.norm.weight"
BROKEN: list[tuple[str, Break, str]] = [
    (
        "plain",
        cut(-1000),
        r"model\.safetensors is damaged: its header describes \d+ bytes of tensors, it has \d+; down",
    ),
    *(("plain", cut(size), r"model\.safetensors is damaged: .*download it again") for size in (0, 5, 300)),
    ("plain", index("model-9.safetensors"), r"the model's shard model-9\.safetensors is missing; download the model"),
    (
        "plain",
        index("../elsewhere/model.safetensors"),
        r"names the file '\.\./elsewhere/model\.safetensors'; it must be a \*\.safetensors file beside the index",
    ),
    ("plain", index("/etc/passwd"), "names the file '/etc/passwd'; it must be"),
    ("plain", index("pytorch_model.bin"), "names the file 'pytorch_model.bin'; it must be"),
    ("plain", without("model.layers.1.mlp.up_proj.weight"), r"has no tensor 'layers\.1\.feed_forward\.w3\.weight'$"),
    (
        "plain",
        replaced(f"{Q_PROJ}weight", lambda tensor: tensor[:64]),
        r"'layers\.0\.attention\.wq\.weight' has shape \[64, 128\], the configuration needs \[128, 128\]",
    ),
    ("plain", tensors(lambda found: found.update({"model.extra": torch.ones(2)})), "weight 'model.extra', which no"),
    ("plain", value(f"{Q_PROJ}weight", float("nan")), r"'layers\.0\.attention\.wq\.weight' .* damaged: a value is not"),
    ("plain", value(NORM, float("inf")), r"tensor 'norm\.weight' of the checkpoint is damaged: a value is not finite"),
    ("plain", value("model.embed_tokens.weight", float("nan")), r"'tok_embeddings\.weight' .* a value is not finite"),
    ("plain", pickled, r"has its weights only as pickle \(pytorch_model\.bin\), a format that runs code when"),
    ("plain", config(num_hidden_layers=10**9), "the checkpoint has 1000000000 layers; Noria supports 10000"),
    ("plain", config(vocab_size=2**40), "vocab_size must be at least 1 and at most 2147483647"),
    ("plain", config(hidden_size=2**30, num_attention_heads=2), "the weights need .* this machine has"),
    (
        "plain",
        config(model_type="mystery", auto_map={"AutoModel": "modeling.Mystery"}),
        r"model_type 'mystery' with code of its own \(auto_map\), which Noria never runs; Noria supports mistral",
    ),
    ("plain", header(NORM, shape=[2**40]), rf"tensor '{NORM}' has 256 bytes, its shape \[{2**40}\] in BF16 needs 2199"),
    ("plain", header(NORM, dtype="F32"), rf"tensor '{NORM}' has 256 bytes, its shape \[128\] in F32 needs 512"),
    ("plain", header(NORM, shape=[-128]), rf"tensor '{NORM}' has a negative size \(shape \[-128\], bytes"),
    (
        "plain",
        header(NORM, data_offsets=lambda entry: [place - 256 for place in entry["data_offsets"]]),
        r"tensor '.*' starts at byte \d+, the one before it ends at \d+; download it again",
    ),
    (
        "fp8 tensor",
        without(f"{Q_PROJ}weight_scale_inv"),
        r"wq\.weight' is in F8_E4M3, but has no scale \(weight_scale_",
    ),
    (
        "fp8 tensor",
        value(f"{Q_PROJ}weight_scale_inv", float("inf"), 0),
        r"wq\.weight' .*damaged: a value is not finite",
    ),
    ("fp8 tensor", value(f"{Q_PROJ}weight", float("nan")), r"wq\.weight' of the checkpoint is damaged: a value is not"),
    (
        "fp8 blocks",
        replaced("model.layers.0.mlp.up_proj.weight_scale_inv", lambda scale: scale.T),
        r"w3\.weight' is damaged: its scale has shape \[1, 2\], expected \[2, 1\], \[256, 1\] or \[1\]",
    ),
    (
        "ct int8 channel",
        replaced(f"{Q_PROJ}weight_scale", lambda scale: scale[:5]),
        r"wq\.weight' is damaged: its scale has shape \[5, 1\], expected \[128, 1\] or \[1\]",
    ),
    ("fp8 tensor", twice, r"has the tensor 'model\.norm\.weight' twice; download it again"),
    (
        "ct int4 g32",
        replaced(f"{Q_PROJ}weight_shape", lambda shape: shape * 2),
        r"wq\.weight' is damaged: its weight_shape is \[256, 256\], weight_packed \[128, 16\] holds 8 a value",
    ),
    ("ct int4 g32", without(f"{Q_PROJ}weight_shape"), r"wq\.weight' has weight_packed, but no weight_shape; download"),
    ("ct int4 g32", scheme(group_size=0), "has group_size 0; it must be -1 or at least 1"),
    ("ct int4 g32", scheme(group_size=64), r"its weight_scale has shape \[64, 4\], expected \[64, 2\]"),
    ("ct int4 g32", scheme(num_bits=3), "quantization_config in config.json has num_bits 3; Noria supports 4 and 8"),
    (
        "ct int4 g32",
        quantized(format="nvfp4-pack-quantized"),
        "has format 'nvfp4-pack-quantized'; Noria supports float-",
    ),
    (
        "ct int4 g32",
        quantized(sparsity_config={"format": "sparse-24-bitmask"}),
        r"has sparse weights \(format 'sparse-24",
    ),
    ("ct int4 g32", quantized(transform_config={"R1": {}}), "has a transform_config, rotations of activations"),
    ("awq g64", quantized(version="gemv"), "has version 'gemv'; Noria supports 'gemm'"),
    ("awq g64", quantized(bits=3), "has bits 3; Noria supports 4"),
    ("awq g64", without(f"{Q_PROJ}qzeros"), r"wq\.weight' has qweight, but no qzeros; download the model again"),
    ("awq g64", quantized(group_size=-5), "has group_size -5; it must be -1 or at least 1"),
    ("gptq g128", quantized(bits=2), "has bits 2; Noria supports 4 and 8"),
    ("gptq g128", quantized(checkpoint_format="marlin"), "has checkpoint_format 'marlin'; Noria supports 'gptq' and"),
    ("gptq g128", quantized(dynamic={"+:.*": {"bits": 8}}), r"has other bits for some layers \(dynamic\)"),
    ("gptq g128", value(f"{Q_PROJ}g_idx", 99), r"its g_idx has values 0 to 99, expected 0 to 0"),
    ("gptq g128", value(f"{Q_PROJ}bias", 1.0), "it has a bias, which no supported model family has"),
    ("gptq g128", value(f"{Q_PROJ}scales", float("nan")), r"wq\.weight' of the checkpoint is damaged: a value is not"),
    ("gptq g128", quantized(bits=8), r"wq\.weight' is damaged: its scales has shape \[1, 128\]|qzeros has shape"),
    (
        "gptq g128",
        quantized(quant_method="bitsandbytes"),
        "has quant_method 'bitsandbytes'; Noria supports fp8, compressed",
    ),
    ("plain", folder, r"^model\.safetensors is a directory; it must be a safetensors file: download the model again$"),
    (
        "plain",
        header(NORM, dtype="\x1b[31mRED"),
        r"the weight 'model\.norm\.weight' has dtype '\\x1b\[31mRED'; Noria supports BF16, F16, F32$",
    ),
    (
        "ct int8 channel",
        header(NORM, dtype="\x1b[31mRED"),
        r"the weight of 'norm\.weight' has dtype '\\x1b\[31mRED'; Noria supports",
    ),
    (
        "fp8 tensor",
        config(quantization_config=None),
        r"has quantized weights \('.*' in '(F8_E4M3|BF16)'\), but config\.json has no quantization_config; download",
    ),
    ("ct int4 g32", second_group(group_size=64), "has config_groups that differ in group_size; Noria supports one for"),
    ("ct int4 g32", second_group(actorder="group"), "has config_groups that differ in actorder; Noria supports one"),
    ("gptq g128", config(quantization_config="gptq"), "quantization_config in config.json must be a JSON object"),
]


@pytest.mark.parametrize(
    ("form", "broken", "message"), BROKEN, ids=[f"{form} {i}" for i, (form, *_) in enumerate(BROKEN)]
)
def test_a_broken_checkpoint_is_one_line(
    form: str, broken: Break, message: str, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    for path in whole(form).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    broken(tmp_path)
    found = start(tmp_path)
    assert found
    assert str(tmp_path) not in found
    assert re.search(message, found), found


@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
@pytest.mark.parametrize("name", [NORM, "lm_head.weight", "model.layers.1.mlp.down_proj.weight"])
def test_no_scheme_takes_a_value_that_is_not_finite(
    name: str, quantize: str, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    for path in whole("plain").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    value(name, float("nan"))(tmp_path)
    assert "is damaged: a value is not finite; download it again" in str(start(tmp_path, quantize))


def numbers(value: Any, *place: Any) -> Iterator[tuple[Any, ...]]:
    """The keys and positions that lead to each number in a JSON value."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers(inner, *place, key)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield place


@pytest.mark.parametrize("form", ["plain", "ct int4 g32", "fp8 blocks"])
@pytest.mark.parametrize("n_digits", [400, 5000])
def test_a_number_of_many_digits_is_one_line(
    n_digits: int, form: str, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    """In every field of the configuration. No float holds 400 digits, and Python reads no integer of 5000."""
    for path in whole(form).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    text = (tmp_path / "config.json").read_text()
    found = {}
    for *outer, last in numbers(json.loads(text)):
        changed = json.loads(text)
        reduce(getitem, outer, changed)[last] = "HERE"
        (tmp_path / "config.json").write_text(json.dumps(changed).replace('"HERE"', "9" * n_digits))
        found[last] = start(tmp_path)
    for name in ("hidden_size", "num_hidden_layers", "max_position_embeddings", "vocab_size", "num_attention_heads"):
        assert f"config.json must have a whole number of at least 1 in {name}, it has inf" in str(found[name])
    assert "config.json must have a finite number in rms_norm_eps, it has inf" in str(found["rms_norm_eps"])
    assert "rope_theta must be a number above 1, the checkpoint has inf" in str(found["rope_theta"])


def test_a_checkpoint_without_a_tokenizer(whole: Callable[[str], Path]) -> None:
    message = fault(lambda: load_tokenizer(whole("plain")))
    assert message
    assert "has no tokenizer: expected tokenizer.json, tekken.json or tokenizer.model" in message


def test_code_of_a_known_architecture_is_not_run(whole: Callable[[str], Path], tmp_path: Path) -> None:
    """`auto_map` names a module that would leave a file behind; the model starts without it."""
    for path in whole("plain").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "modeling.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    config(auto_map={"AutoModelForCausalLM": "modeling.Other", "AutoConfig": "modeling.Config"})(tmp_path)
    assert start(tmp_path) is None
    assert not (tmp_path / "ran").exists()
