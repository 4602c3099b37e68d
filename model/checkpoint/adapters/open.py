"""Open an adapter in either format. Only headers are read."""

from pathlib import Path

from model.checkpoint.adapters import mistral, peft
from model.checkpoint.adapters.pairs import AdapterFile
from model.checkpoint.files import PICKLES, file_names
from model.errors import ModelError


def open_adapter(path: Path) -> AdapterFile:
    """Open the adapter in a directory, or in a safetensors file.

    Raises ModelError, one line without the path, for what is no adapter or one that Noria does not support.
    """
    if path.is_dir():
        return _open_directory(path)
    if not path.is_file():
        raise ModelError(f"there is no adapter {path.name!r}: expected a directory or a .safetensors file")
    if path.name == peft.WEIGHTS:
        return _open_directory(path.parent)
    if path.suffix == ".safetensors":
        return mistral.open_native(path)
    raise ModelError(f"{path.name!r} is not an adapter: expected a directory or a .safetensors file")


def _open_directory(directory: Path) -> AdapterFile:
    names = {name for name in file_names(directory) if (directory / name).is_file()}  # to open a pipe would block
    if {peft.CONFIG, peft.WEIGHTS} <= names:
        return peft.open_peft(directory)
    if mistral.WEIGHTS in names:
        return mistral.open_native(directory / mistral.WEIGHTS)
    pickles = sorted(name for name in names if name.lower().endswith(PICKLES))
    if pickles and peft.WEIGHTS not in names:
        raise ModelError(
            f"{directory.name!r} has its adapter only as pickle ({pickles[0]}), a format that runs code when it is "
            f"read; Noria reads safetensors: save the adapter as {peft.WEIGHTS}"
        )
    missing = peft.WEIGHTS if peft.CONFIG in names else peft.CONFIG if peft.WEIGHTS in names else None
    if missing:
        raise ModelError(f"{directory.name!r} has no {missing}: an adapter needs {peft.CONFIG} and {peft.WEIGHTS}")
    raise ModelError(
        f"{directory.name!r} is not an adapter: expected {peft.CONFIG} and {peft.WEIGHTS}, or {mistral.WEIGHTS}"
    )
