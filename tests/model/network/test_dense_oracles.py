"""Every dense family against transformers: log probabilities at every position, over chunks of every size.

The prompts cross the window, the context before YaRN and several steps of the query temperature.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from model.checkpoint.open import open_checkpoint
from model.network.transformer import Transformer
from tests.model.attention.attending import SWIFT, make
from tests.model.checkpoint.native_files import save_native, tensors_of
from tests.model.driving import Driver, loaded
from tests.model.network.oracles import KINDS, NATIVE, TOKENS, WINDOW, rename, save

Saved = Callable[[str], tuple[Path, Tensor]]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Saved:
    """The directory of a kind in Hugging Face's format, and its log probabilities."""

    @cache
    def made(kind: str) -> tuple[Path, Tensor]:
        directory = tmp_path_factory.mktemp("hf")
        return directory, save(kind, directory)

    return made


def logprobs(model: Transformer, backend: str, chunk: int | None = None) -> Tensor:
    return Driver(model, make(backend), shuffle=0).whole(TOKENS, chunk).log_softmax(-1)


def agree(model: Transformer, backend: str, chunk: int | None, expected: Tensor) -> None:
    torch.testing.assert_close(logprobs(model, backend, chunk), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_hugging_face_files(kind: str, saved: Saved) -> None:
    directory, expected = saved(kind)
    model = loaded(directory)
    for backend in SWIFT:
        agree(model, backend, None, expected)
        agree(model, backend, 7, expected)
    for chunk in (1, WINDOW):
        agree(model, "paged", chunk, expected)


@pytest.mark.parametrize("kind", NATIVE)
def test_native_files(kind: str, saved: Saved, tmp_path: Path) -> None:
    """The same weights as Mistral writes them: other names, rows of q and k in adjacent pairs, params.json."""
    directory, expected = saved(kind)
    model = loaded(save_native(directory, tmp_path / "native"))
    for chunk in (1, 7, WINDOW, None):
        agree(model, "paged", chunk, expected)


def test_native_window_under_its_other_name(saved: Saved, tmp_path: Path) -> None:
    directory, expected = saved("ministral")
    windows = [None, WINDOW, WINDOW]
    native = save_native(directory, tmp_path / "native", sliding_window=None, _sliding_window=windows)
    agree(loaded(native), "paged", None, expected)


def new_name(name: str) -> str:
    """The name of transformers 5 for a weight of mistral3, from the older one that it still writes."""
    if name.startswith("language_model.model."):
        return "model.language_model." + name.removeprefix("language_model.model.")
    return name.removeprefix("language_model.") if name.startswith("language_model.") else f"model.{name}"


def test_names_of_a_model_of_text_and_images(saved: Saved, tmp_path: Path) -> None:
    """Both generations of names are the same model."""
    directory, expected = saved("mistral3")
    old = tensors_of(directory)
    assert {"language_model.lm_head.weight", "vision_tower.patch_conv.weight"} <= old.keys()
    for path in directory.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    rename(tmp_path, new_name)
    new = tensors_of(tmp_path)
    assert {"lm_head.weight", "model.vision_tower.patch_conv.weight", "model.language_model.norm.weight"} <= new.keys()
    agree(loaded(tmp_path), "paged", None, expected)


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("mistral", {"windows": (None,) * 3}),
        ("ministral", {"windows": (WINDOW,) * 3}),
        ("ministral two ropes", {"full_rope": None}),
        ("ministral3", {"query_temperature": None}),
        ("ministral3", {"rope_scaling": None}),
        ("medium", {"rope_scaling": {"attention_factor": 1.0}}),
        ("medium", {"rope_scaling": {"beta_fast": 32.0}}),
        ("medium", {"rope_scaling": {"truncate": False}}),
        ("llama 3", {"rope_scaling": None}),
        ("partial", {"rope_dim": None}),
    ],
    ids=str,
)
def test_what_is_special_shows(kind: str, change: dict[str, Any], saved: Saved) -> None:
    """Without it the log probabilities differ by far more than the tolerance above."""
    directory, expected = saved(kind)
    checkpoint = open_checkpoint(directory)
    if change.get("rope_scaling"):
        assert checkpoint.config.rope_scaling is not None
        change = {"rope_scaling": replace(checkpoint.config.rope_scaling, **change["rope_scaling"])}
    found = logprobs(loaded(replace(checkpoint, config=replace(checkpoint.config, **change))), "paged")
    assert (found - expected).abs().max() > 0.01
