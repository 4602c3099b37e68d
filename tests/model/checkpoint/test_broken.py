"""Broken safetensors checkpoints: each is refused in one line that says what was found and what to do."""

import json
import re
import shutil
from collections.abc import Callable
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


def longer(directory: Path) -> None:
    """A header that says of one tensor that it has more values than bytes."""
    data = (directory / MODEL).read_bytes()
    (directory / MODEL).write_bytes(data.replace(b'"shape":[128]', b'"shape":[999]', 1))


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


NORM = "model.norm.weight"
BROKEN: list[tuple[str, Break, str]] = [
    *(("plain", cut(size), r"model\.safetensors is damaged: .*; download it again") for size in (-1000, 0, 5, 300)),
    ("plain", index("model-9.safetensors"), r"the model's shard model-9\.safetensors is missing; download the model"),
    (
        "plain",
        index("../elsewhere/model.safetensors"),
        r"names the file '\.\./elsewhere/model\.safetensors'; it must be a \*\.safetensors file beside the index",
    ),
    ("plain", without("model.layers.1.mlp.up_proj.weight"), r"has no tensor 'layers\.1\.feed_forward\.w3\.weight'$"),
    (
        "plain",
        replaced(f"{Q_PROJ}weight", lambda tensor: tensor[:64]),
        r"'layers\.0\.attention\.wq\.weight' has shape \[64, 128\], the configuration needs \[128, 128\]",
    ),
    ("plain", tensors(lambda found: found.update({"model.extra": torch.ones(2)})), "weight 'model.extra', which no"),
    ("plain", value(f"{Q_PROJ}weight", float("nan")), r"'layers\.0\.attention\.wq\.weight' .* damaged: a value is not"),
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
    ("plain", longer, r"model\.safetensors is damaged: .*; download it again"),
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
    ("fp8 tensor", twice, r"has the tensor 'model\.norm\.weight' twice; download it again"),
    (
        "ct int4 g32",
        replaced(f"{Q_PROJ}weight_shape", lambda shape: shape * 2),
        r"wq\.weight' is damaged: its weight_shape is \[256, 256\], weight_packed \[128, 16\] holds 8 a value",
    ),
    ("ct int4 g32", without(f"{Q_PROJ}weight_shape"), r"wq\.weight' has weight_packed, but no weight_shape; download"),
    ("awq g64", without(f"{Q_PROJ}qzeros"), r"wq\.weight' has qweight, but no qzeros; download the model again"),
    ("gptq g128", value(f"{Q_PROJ}g_idx", 99), r"its g_idx has values 0 to 99, expected 0 to 0"),
    ("gptq g128", value(f"{Q_PROJ}bias", 1.0), "it has a bias, which no supported model family has"),
    ("plain", folder, r"^model\.safetensors is a directory; it must be a safetensors file: download the model again$"),
    (
        "fp8 tensor",
        config(quantization_config=None),
        r"has quantized weights \('.*' in '(F8_E4M3|BF16)'\), but config\.json has no quantization_config; download",
    ),
]


@pytest.mark.parametrize(
    ("form", "broken", "message"), BROKEN, ids=[f"{form} {i}" for i, (form, *_) in enumerate(BROKEN)]
)
def test_a_broken_checkpoint_is_one_line(
    form: str, broken: Break, message: str, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(whole(form), tmp_path, dirs_exist_ok=True)
    broken(tmp_path)
    found = start(tmp_path)
    assert found
    assert str(tmp_path) not in found
    assert re.search(message, found), found


@pytest.mark.parametrize("quantize", ["none", "int8", "int4"])
@pytest.mark.parametrize("name", [NORM, "lm_head.weight"])
def test_no_scheme_takes_a_value_that_is_not_finite(
    name: str, quantize: str, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    shutil.copytree(whole("plain"), tmp_path, dirs_exist_ok=True)
    value(name, float("nan"))(tmp_path)
    assert "is damaged: a value is not finite; download it again" in str(start(tmp_path, quantize))


def test_a_checkpoint_without_a_tokenizer(whole: Callable[[str], Path]) -> None:
    message = fault(lambda: load_tokenizer(whole("plain")))
    assert message
    assert "has no tokenizer: expected tokenizer.json, tekken.json or tokenizer.model" in message


def test_code_of_a_known_architecture_is_not_run(whole: Callable[[str], Path], tmp_path: Path) -> None:
    """`auto_map` names a module that would leave a file behind; the model starts without it."""
    shutil.copytree(whole("plain"), tmp_path, dirs_exist_ok=True)
    (tmp_path / "modeling.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    config(auto_map={"AutoModelForCausalLM": "modeling.Other", "AutoConfig": "modeling.Config"})(tmp_path)
    assert start(tmp_path) is None
    assert not (tmp_path / "ran").exists()
