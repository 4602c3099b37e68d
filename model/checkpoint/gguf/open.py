"""A GGUF model: where its weights are, and the files of a Hugging Face directory that its metadata make, in memory.

No torch.
"""

import io
import json
import zipfile
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources.abc import Traversable
from itertools import chain
from pathlib import Path
from typing import Any

from model.checkpoint.embedded import EMBEDDED_SAMPLING, is_embedded
from model.checkpoint.gguf.config import EMBEDDINGS, generation_config, hf_config, unused_keys
from model.checkpoint.gguf.encoder import GgufEncoder, files_beside, find_encoder
from model.checkpoint.gguf.entries import entries
from model.checkpoint.gguf.index import Index, TensorEntry
from model.checkpoint.gguf.parts import find_parts
from model.checkpoint.gguf.reader import read_parts
from model.checkpoint.gguf.rope import wrong_conversions
from model.checkpoint.gguf.tokenizer import Metadata, tokenizer_files, wrong_padding
from model.checkpoint.names import GGUF
from model.errors import ModelError, one_line

ROW_BREAK = "[IMG_BREAK]"
DIVISORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class GgufModel:
    """A GGUF model of which only the headers have been read. `config` is its `config.json`.

    `doubts` are lines about the files for their user: conversions that are known to be wrong, and files that are not
    used.
    """

    index: Index
    metadata: Metadata
    config: dict[str, Any]
    encoder: GgufEncoder | None = None
    doubts: tuple[str, ...] = ()

    @property
    def files(self) -> tuple[tuple[Path, tuple[int, ...]], ...]:
        """Return all files with weights, and where the weights in each begin."""
        return self.index.files + (self.encoder.index.files if self.encoder else ())


def open_gguf(source: Path) -> GgufModel:
    """Open the model whose first file is `source`, with the image encoder beside it if there is one.

    Raises ModelError for a damaged file, for another architecture, and for a quantization without a decoder.
    """
    paths, beside = find_parts(source), files_beside(source)
    states = tuple((found.st_size, found.st_mtime_ns) for found in map(Path.stat, (*paths, *beside)))
    return _opened(source, paths, beside, states)


@lru_cache(maxsize=1)  # a header takes up to a second; one start, and each plan of a series, reads it several times
def _opened(
    source: Path, paths: tuple[Path, ...], beside: tuple[Path, ...], states: tuple[tuple[int, int], ...]
) -> GgufModel:
    """Do `open_gguf` for files with these sizes and times of their last change."""
    file = read_parts(paths)
    weights = [tensor for tensor in file.tensors if tensor.name != DIVISORS]
    index = Index(paths, tuple(entry for tensor in weights for entry in entries(tensor, GGUF)))
    shapes = {entry.name: entry.shape for entry in index.entries}
    if EMBEDDINGS not in shapes:
        raise ModelError(f"{source.name} has no tensor 'token_embd.weight'; a model needs it")
    with _metadata_of(source):
        config = hf_config(file.metadata, shapes, _divisors(paths, file.tensors), index.dtype)
        img_break = _img_break(index, file.metadata) if beside else None
    encoder, unused = find_encoder(beside, source, config["hidden_size"], img_break)
    lines = (check(source.name, file.metadata) for check in (wrong_conversions, wrong_padding, unused_keys))
    return GgufModel(index, file.metadata, config, encoder, (*chain.from_iterable(lines), *unused))


def gguf_files(source: Path, opened: GgufModel | None = None) -> Traversable:
    """Make the configuration and tokenizer of the model, as files in memory. One that is `opened` may have gone.

    Raises ModelError as `open_gguf` does, and for a tokenizer that is not supported.
    """
    opened = opened or open_gguf(source)
    sampling = EMBEDDED_SAMPLING if is_embedded(source) else {}
    with _metadata_of(source):
        files = tokenizer_files(opened.metadata)
        configs = {
            "config.json": opened.config,
            "generation_config.json": {**sampling, **generation_config(opened.metadata)},
        }
        files |= {name: json.dumps(config) for name, config in configs.items()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return zipfile.Path(zipfile.ZipFile(buffer))


@contextmanager
def _metadata_of(source: Path) -> Iterator[None]:
    """Raise ModelError for metadata that the block cannot read."""
    try:
        yield
    except KeyError as error:
        raise ModelError(f"{source.name} has no {error} in its metadata; a model of this kind needs it") from error
    except (ModelError, OSError):
        raise
    except Exception as error:  # a value of another type or size; tokenizers raises Exception itself
        raise ModelError(f"{source.name} has metadata that no model can have: {one_line(error)}") from error


def _img_break(index: Index, metadata: Metadata) -> Any:
    """Return the embedding [dim] of the token at the end of an image's row, None if the model has no such token."""
    from model.checkpoint.gguf.rows import read_row  # numpy, which no other part of a header needs

    table = next((entry for entry in index.entries if entry.name == EMBEDDINGS), None)
    if table is None:
        return None
    tokens = list(metadata.get("tokenizer.ggml.tokens", ()))[: table.shape[0]]
    number = tokens.index(ROW_BREAK) if ROW_BREAK in tokens else None
    return None if number is None else read_row(index.paths[table.file], table, number)


def _divisors(paths: Sequence[Path], tensors: Sequence[TensorEntry]) -> Sequence[float]:
    """Return the values of `rope_freqs.weight`, if the model has it: a divisor of each pair's rotation frequency."""
    for tensor in tensors:
        if tensor.name == DIVISORS:
            if tensor.kind != "F32" or len(tensor.shape) > 1:
                raise ModelError(f"the GGUF file has {DIVISORS} in {tensor.kind}, expected a row in F32")
            with paths[tensor.file].open("rb") as file:
                file.seek(tensor.offset)
                return array("f", file.read(tensor.n_bytes)).tolist()
    return ()
