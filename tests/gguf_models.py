"""Smaller copies of GGUF models, and their files as a directory."""

import shutil
from dataclasses import replace
from pathlib import Path

from model.checkpoint.gguf.reader import read_gguf
from model.checkpoint.gguf.tokenizer import Metadata, tokenizer_files
from model.checkpoint.model_files import model_files
from tests.model.checkpoint.gguf_bytes import join


def shortened(source: Path, target: Path, n_layers: int) -> Path:
    """The first layers of a model of one file."""
    file, data = read_gguf(source), source.read_bytes()
    metadata = {**file.metadata, "llama.block_count": n_layers}
    left_out = tuple(f"blk.{number}." for number in range(n_layers, file.metadata["llama.block_count"]))
    tensors, parts, place = [], [], 0
    for tensor in file.tensors:
        if tensor.name.startswith(left_out):
            continue
        parts.append(data[tensor.offset : tensor.offset + tensor.n_bytes] + bytes(-tensor.n_bytes % 32))
        tensors.append(replace(tensor, offset=place))
        place += len(parts[-1])
    target.write_bytes(join(metadata, tensors, b"".join(parts), 0))
    return target


def extracted(model: Path, directory: Path) -> Path:
    """The configuration and the tokenizer of a model in a directory, for `transformers`."""
    directory.mkdir(exist_ok=True)
    for file in model_files(model).iterdir():
        if isinstance(file, Path):
            shutil.copy(file, directory)
        else:
            (directory / file.name).write_bytes(file.read_bytes())
    return directory


def write_tokenizer(metadata: Metadata, directory: Path) -> None:
    """Write the tokenizer that the metadata of a GGUF file have."""
    for name, text in tokenizer_files(metadata).items():
        (directory / name).write_text(text, encoding="utf-8")
