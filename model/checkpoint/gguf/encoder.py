"""The image encoder of a GGUF model: a file beside it whose name has the word "mmproj". llama.cpp writes both files.

No torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.checkpoint.configs.fields import Fields
from model.checkpoint.configs.vision import BIAS, NORM, read_vision
from model.checkpoint.gguf.entries import entries
from model.checkpoint.gguf.index import Index, TensorEntry
from model.checkpoint.gguf.kinds import is_projector
from model.checkpoint.gguf.reader import GgufFile, read_parts
from model.checkpoint.names import GGUF_VISION
from model.config.vision import DEVIATION, MEAN, VisionConfig
from model.errors import ModelError, one_line, short

PROJECTOR = "pixtral"
IMG_BREAK = "v.token_embd.img_break"
"""A copy of a row of the text model's embeddings, which Noria takes from there."""
OWN: Mapping[str, str] = {
    "hidden_size": "clip.vision.embedding_length",
    "num_hidden_layers": "clip.vision.block_count",
    "num_attention_heads": "clip.vision.attention.head_count",
    "intermediate_size": "clip.vision.feed_forward_length",
    "patch_size": "clip.vision.patch_size",
    "image_size": "clip.vision.image_size",
    "spatial_merge_size": "clip.vision.spatial_merge_size",
    "rope_theta": "clip.rope.freq_base",
    "norm_eps": "clip.vision.attention.layer_norm_epsilon",
}
"""The keys of `read_vision`, and those of the metadata."""
_NORMALIZED: Mapping[str, Sequence[float]] = {"clip.vision.image_mean": MEAN, "clip.vision.image_std": DEVIATION}
_PROJECTORS = ("clip.projector_type", "clip.vision.projector_type")
_WIDTH = "clip.vision.projection_dim"
_KNOWN = frozenset(
    (
        *(*OWN.values(), *_NORMALIZED, *_PROJECTORS, _WIDTH, "clip.use_silu", "clip.use_gelu"),
        *("clip.has_vision_encoder", "clip.has_audio_encoder", "clip.has_llava_projector"),
    )
)
"""Keys of an encoder that Noria reads, or that change nothing for this projector."""


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
    files: Sequence[Path], source: Path, dim: int, img_break: Any
) -> tuple[GgufEncoder | None, tuple[str, ...]]:
    """Find the encoder for the text model `source`, None without one; and a line for each file for another model.

    `img_break` is the text model's embedding [dim] of the token at the end of an image's row, None if it has none.
    Raises ModelError if several files fit, for a damaged file, and for an encoder that Noria does not have.
    """
    opened = {path: read_parts((path,)) for path in files}
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
    projector = next((metadata[key] for key in _PROJECTORS if metadata.get(key)), None)
    if projector != PROJECTOR:
        return f"the projector {short(projector)}, Noria has {PROJECTOR!r}"
    if (width := metadata.get(_WIDTH, dim)) != dim:
        return f"embeddings of {short(width)} values, the model has {dim}"
    return None


def _unlike(path: Path, file: GgufFile, source: Path, img_break: Any) -> str | None:
    """Return why the encoder's copy of `img_break` is of another text model; None if it is not, or is missing."""
    from model.checkpoint.gguf.rows import are_unlike, read_row  # numpy, which no other part of a header needs

    copy = next((tensor for tensor in file.tensors if tensor.name == IMG_BREAK), None)
    if copy is None or copy.shape != img_break.shape or not are_unlike(read_row(path, copy), img_break):
        return None
    return f"another embedding of [IMG_BREAK] than {source.name}, so it is for another model"


def _encoder(path: Path, file: GgufFile) -> GgufEncoder:
    try:
        fields = _fields(file.metadata, {tensor.name for tensor in file.tensors})
        return GgufEncoder(Index((path,), tuple(_named(file.tensors))), read_vision(fields))
    except (ModelError, TypeError, ValueError, ArithmeticError) as error:
        raise ModelError(f"{path.name}: {one_line(error)}; move it away to serve text alone") from error


def _named(tensors: Sequence[TensorEntry]) -> Iterator[TensorEntry]:
    for tensor in tensors:
        if tensor.name != IMG_BREAK:
            yield from entries(tensor, GGUF_VISION)


def _fields(metadata: Mapping[str, Any], names: set[str]) -> Fields:
    """Return the fields for `read_vision`. Raises ModelError for a value that Noria does not have."""
    if unknown := sorted({key for key in metadata if key.startswith("clip.")} - _KNOWN):
        raise ModelError(f"the image encoder has the key {short(unknown[0])}, which Noria does not know")
    for key, expected in _NORMALIZED.items():
        found = [float(f"{value:.6g}") for value in metadata.get(key, expected)]
        if len(found) != len(expected) or not all(map(_is_near, found, expected)):
            raise ModelError(f"the image encoder has {found} in {key}; Noria supports {list(expected)}")
    values = {"spatial_merge_size": 1} | {key: metadata[name] for key, name in OWN.items() if name in metadata}
    values |= {NORM: "mm.input_norm.weight" in names, BIAS: "mm.1.bias" in names, "hidden_act": _activation(metadata)}
    values["norm_eps"] = float(f"{metadata.get(OWN['norm_eps'], 0):.6g}")
    return Fields(values, "the image encoder", OWN)


def _is_near(value: float, expected: float) -> bool:
    """Compare two numbers that files have in 32 bits, some with fewer digits."""
    return abs(value - expected) < 1e-5


def _activation(metadata: Mapping[str, Any]) -> str:
    named = [name for name in ("silu", "gelu") if metadata.get(f"clip.use_{name}")]
    if len(named) != 1:
        raise ModelError(f"the image encoder has {len(named)} of clip.use_silu and clip.use_gelu, expected one")
    return named[0]
