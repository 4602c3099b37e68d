"""The image encoder of a GGUF model: a file beside it whose name has the word "mmproj". llama.cpp writes both files.

No torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model.checkpoint.gguf.entries import entries
from model.checkpoint.gguf.index import Index, TensorEntry
from model.checkpoint.gguf.kinds import is_projector
from model.checkpoint.gguf.reader import GgufFile, read_gguf
from model.checkpoint.gguf.rows import are_unlike, read_row
from model.checkpoint.names import GGUF_VISION
from model.config.vision import DEVIATION, MEAN, VisionConfig
from model.errors import ModelError, one_line, short

PROJECTOR = "pixtral"
IMG_BREAK = "v.token_embd.img_break"
"""A copy of a row of the text model's embeddings, which Noria takes from there."""
_SIZES: Mapping[str, str] = {
    "dim": "vision.embedding_length",
    "n_layers": "vision.block_count",
    "n_heads": "vision.attention.head_count",
    "hidden_dim": "vision.feed_forward_length",
    "patch_size": "vision.patch_size",
    "image_size": "vision.image_size",
}
_EPS, _MERGE, _THETA = "vision.attention.layer_norm_epsilon", "vision.spatial_merge_size", "rope.freq_base"
_NORMALIZED: Mapping[str, Sequence[float]] = {"vision.image_mean": MEAN, "vision.image_std": DEVIATION}
_PROJECTORS = ("projector_type", "vision.projector_type")
_KNOWN = frozenset(
    (
        *(*_SIZES.values(), *_NORMALIZED, *_PROJECTORS, _EPS, _MERGE, _THETA, "use_silu", "use_gelu"),
        *("has_vision_encoder", "has_audio_encoder", "has_llava_projector", "vision.projection_dim"),
    )
)
"""Keys after "clip." that Noria reads, or that change nothing for this projector."""


@dataclass(frozen=True, slots=True)
class GgufEncoder:
    """An image encoder of which only the header has been read."""

    index: Index
    config: VisionConfig


def files_beside(source: Path) -> tuple[Path, ...]:
    """Return the files in a GGUF model's folder that may have its image encoder; none if it cannot be listed."""
    try:
        files = [path for path in source.parent.iterdir() if is_projector(path.name) and path != source]
        return tuple(sorted(path for path in files if path.is_file()))
    except PermissionError:
        return ()


def find_encoder(
    files: Sequence[Path], source: Path, dim: int, img_break: np.ndarray | None
) -> tuple[GgufEncoder | None, tuple[str, ...]]:
    """Find the encoder for the text model `source`, None without one; and a line for each file for another model.

    `img_break` is the text model's embedding [dim] of the token at the end of an image's row, None if it has none.
    Raises ModelError if several files fit, for a damaged file, and for an encoder that Noria does not have.
    """
    opened = {path: read_gguf(path) for path in files}
    reasons = {path: _misfit(file.metadata, dim) for path, file in opened.items()}
    if img_break is not None:
        for path in [path for path, reason in reasons.items() if reason is None]:
            reasons[path] = _unlike(path, opened[path], source, img_break)
    fitting = [path for path, reason in reasons.items() if reason is None]
    if len(fitting) > 1:
        names = ", ".join(path.name for path in fitting)
        raise ModelError(f"{len(fitting)} image encoders fit the model ({names}); leave one of them beside it")
    unused = tuple(f"{path.name} is not used: it has {reason}" for path, reason in reasons.items() if reason)
    return (_encoder(fitting[0], opened[fitting[0]]) if fitting else None), unused


def _misfit(metadata: Mapping[str, Any], dim: int) -> str | None:
    """Return why an encoder belongs to another model; None if it fits."""
    values = _values(metadata)
    projector = next((values[key] for key in _PROJECTORS if values.get(key)), None)
    if projector != PROJECTOR:
        return f"the projector {short(projector)}, Noria has {PROJECTOR!r}"
    if (width := values.get("vision.projection_dim", dim)) != dim:
        return f"embeddings of {short(width)} values, the model has {dim}"
    return None


def _unlike(path: Path, file: GgufFile, source: Path, img_break: np.ndarray) -> str | None:
    """Return why the encoder's copy of `img_break` is of another text model; None if it is not, or is missing."""
    copy = next((tensor for tensor in file.tensors if tensor.name == IMG_BREAK), None)
    if copy is None or copy.shape != img_break.shape or not are_unlike(read_row(path, copy), img_break):
        return None
    return f"another embedding of [IMG_BREAK] than {source.name}, so it is for another model"


def _values(metadata: Mapping[str, Any]) -> dict[str, Any]:
    return {key.removeprefix("clip."): value for key, value in metadata.items() if key.startswith("clip.")}


def _encoder(path: Path, file: GgufFile) -> GgufEncoder:
    try:
        config = _config(_values(file.metadata), {tensor.name for tensor in file.tensors})
        return GgufEncoder(Index((path,), tuple(_named(file.tensors))), config)
    except KeyError as error:
        raise ModelError(f"{path.name} has no 'clip.{error.args[0]}' in its metadata; download it again") from error
    except (ModelError, TypeError, ValueError, ArithmeticError) as error:
        raise ModelError(f"{path.name}: {one_line(error)}; move it away to serve text alone") from error


def _named(tensors: Sequence[TensorEntry]) -> Iterator[TensorEntry]:
    for tensor in tensors:
        if tensor.name != IMG_BREAK:
            yield from entries(tensor, GGUF_VISION)


def _config(values: Mapping[str, Any], names: set[str]) -> VisionConfig:
    """Read the configuration. Raises ModelError for a value that Noria does not have, KeyError for a missing field."""
    if unknown := sorted(values.keys() - _KNOWN):
        raise ModelError(f"the image encoder has the key {short(f'clip.{unknown[0]}')}, which Noria does not know")
    for key, expected in _NORMALIZED.items():
        found = [float(f"{value:.6g}") for value in values.get(key, expected)]
        if len(found) != len(expected) or not all(map(_is_near, found, expected)):
            raise ModelError(f"the image encoder has {found} in clip.{key}; Noria supports {list(expected)}")
    sizes = {name: values[key] for name, key in _SIZES.items()}
    if sizes["dim"] % sizes["n_heads"]:
        raise ModelError(
            f"the image encoder has {sizes['dim']} values in {sizes['n_heads']} heads, expected a multiple"
        )
    return VisionConfig(
        **sizes,
        head_dim=sizes["dim"] // sizes["n_heads"],
        rope_theta=values.get(_THETA, 10_000.0),
        norm_eps=float(f"{values[_EPS]:.6g}"),
        merge=values.get(_MERGE, 1),
        adapter_norm="mm.input_norm.weight" in names,
        adapter_bias="mm.1.bias" in names,
        hidden_act=_activation(values),
    )


def _is_near(value: float, expected: float) -> bool:
    """Compare two numbers that files have in 32 bits, some with fewer digits."""
    return abs(value - expected) < 1e-5


def _activation(values: Mapping[str, Any]) -> str:
    named = [name for name in ("silu", "gelu") if values.get(f"use_{name}")]
    if len(named) != 1:
        raise ModelError(f"the image encoder has {len(named)} of clip.use_silu and clip.use_gelu, expected one")
    return named[0]
