"""The files of a model that make a compiler of grammars, as bytes: a later process needs no directory."""

import io
import zipfile
from collections.abc import Callable
from importlib.resources.abc import Traversable
from pathlib import Path

from model.checkpoint.model_files import is_gguf, model_files
from model.tokenizers.load import tokenizer_file
from model.tokenizers.roles import ADDED, CONFIG, SPECIAL_MAP, TEMPLATE, TEMPLATES, read_roles

NAMES = (CONFIG, SPECIAL_MAP, ADDED, "generation_config.json", "config.json", "params.json")
"""The files that `load_tokenizer` and `end_tokens` read, besides the tokenizer's file and the chat templates."""


def pack(model: Traversable, template: str | None = None) -> bytes:
    """Pack the files of a model into an archive, which is as long as they are. Raises OSError.

    The text `template` takes the place of the model's chat templates.
    """
    directory = model_files(model)
    present = [path for name in NAMES if (path := directory / name).is_file()]
    if (tokenizer := tokenizer_file(directory)) is not None:
        present.append(directory / tokenizer.name)
    templates = read_roles(directory, template).templates
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path in present:
            archive.writestr(path.name, path.read_bytes())
        for name, text in templates.items():
            archive.writestr(TEMPLATE if name == "default" else f"{TEMPLATES}/{name}.jinja", text)
    return buffer.getvalue()


def packer(model: Path, template: str | None = None) -> Callable[[], bytes]:
    """Return a function that packs a model as it is now, even if its files have gone by then. Raises OSError.

    It makes the files of a GGUF model: few models ever need them, and they take a fifth of a second.
    """
    if is_gguf(model):
        from model.checkpoint.gguf.open import gguf_files, open_gguf  # numpy, which a directory does not need

        opened = open_gguf(model)
        return lambda: pack(gguf_files(model, opened), template)
    archive = pack(model, template)
    return lambda: archive


def unpack(archive: bytes) -> Traversable:
    """Unpack the directory that `pack` read."""
    return zipfile.Path(zipfile.ZipFile(io.BytesIO(archive)))
