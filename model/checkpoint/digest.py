"""SHA-256 digests of a model's or an adapter's files. They name the weights in a receipt. No torch."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from model.checkpoint.files import find_shards, layout
from model.checkpoint.gguf.encoder import files_beside
from model.checkpoint.gguf.open import open_gguf
from model.checkpoint.gguf.parts import find_parts
from model.checkpoint.model_files import is_gguf

CONFIGS = {"hf": "config.json", "native": "params.json"}
ADAPTER_FILES = (".json", ".safetensors")


def network_files(source: Path) -> tuple[Path, ...]:
    """Return the files of a model that decide what the network computes, in order.

    These are the parts of a GGUF model and its image encoder, or the configuration and then the safetensors files of a
    directory. Raises ModelError for a file that is missing.
    """
    if is_gguf(source):
        return tuple(path for path, _ in open_gguf(source).files) if files_beside(source) else find_parts(source)
    return (source / CONFIGS[layout(source)], *find_shards(source))


def adapter_files(source: Path) -> tuple[Path, ...]:
    """Return the files of a LoRA adapter, which is a directory or a file. Raises OSError."""
    files = source.iterdir() if source.is_dir() else [source]
    return tuple(sorted(path for path in files if path.suffix in ADAPTER_FILES))


def stamp(files: Sequence[Path]) -> str:
    """Return the sizes and times of files: another stamp means that their content may have changed. Raises OSError."""
    return repr([(status.st_size, status.st_mtime_ns) for status in map(Path.stat, files)])


def files_digest(files: Sequence[Path]) -> str:
    """Return the SHA-256 of one file; of several, the SHA-256 of their hexadecimal digests, one a line.

    So `sha256sum FILE`, and `sha256sum FILES | cut -c1-64 | sha256sum`, give the same. Raises OSError.
    """
    found = [_file_digest(path) for path in files]
    lines = "".join(f"{one}\n" for one in found)
    return f"sha256:{found[0] if len(found) == 1 else hashlib.sha256(lines.encode()).hexdigest()}"


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
