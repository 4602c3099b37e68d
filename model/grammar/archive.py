"""The files of a model that make a compiler of grammars, as bytes: a later process needs no directory."""

import io
import zipfile
from importlib.resources.abc import Traversable

from model.checkpoint.model_files import model_files
from model.tokenizers.load import tokenizer_file

NAMES = ("tokenizer_config.json", "generation_config.json", "config.json")
"""What `load_tokenizer` and `read_generation` read, besides the file of the tokenizer."""


def pack(model: Traversable) -> bytes:
    """An archive of the files of a model. It is as long as they are. Raises OSError."""
    directory = model_files(model)
    present = [path for name in NAMES if (path := directory / name).is_file()]
    if (tokenizer := tokenizer_file(directory)) is not None:
        present.append(directory / tokenizer.name)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in present:
            archive.writestr(path.name, path.read_bytes())
    return buffer.getvalue()


def unpack(archive: bytes) -> Traversable:
    """The directory that `pack` read."""
    return zipfile.Path(zipfile.ZipFile(io.BytesIO(archive)))
