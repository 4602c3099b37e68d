"""From MODEL, as the user writes it, to a local directory or GGUF file that `open_checkpoint` reads. No torch."""

import re
from pathlib import Path

from model.checkpoint.embedded import EMBEDDED, embedded_gguf
from model.checkpoint.files import Progress, find_shards, layout
from model.checkpoint.gguf.parts import find_parts, whole_name
from model.checkpoint.model_files import is_gguf
from model.errors import ModelError, one_line

_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(:[\w.-]+)?")
"""A name on the hub, perhaps with the kind of a GGUF file."""


def ignore_progress(stage: str, fraction: float) -> None:
    """Do nothing: the default of `progress`."""


def resolve(
    model: str, *, revision: str | None = None, progress: Progress = ignore_progress, weights: bool = True
) -> Path:
    """Resolve `model`, a hub name, directory, `.gguf` file or the embedded model's name, to a directory or GGUF file.

    For a hub name, files are downloaded; without `weights` only the configuration, or the GGUF file that contains it.
    A hub name may end with the kind of a GGUF file, as in `org/name:Q4_K_M`. `progress` is called meanwhile.
    Raises ModelError, one line: what was found, what was expected.
    """
    if model == EMBEDDED:
        return embedded_gguf()
    found, is_dir, is_file = _looked_up(model)
    if is_file and found.suffix.lower() != ".gguf":
        raise ModelError(f"{found.name} is a file; expected a .gguf file or a model directory")
    if not (is_dir or is_file):
        if found.suffix.lower() == ".gguf" or not _HUB_NAME.fullmatch(model):
            raise ModelError(
                f"there is no model at {model!r}: expected a directory, a .gguf file, {EMBEDDED}, or a hub name as "
                "mistralai/Voxtral-Mini-3B-2507 or mistralai/Ministral-3-3B-Instruct-2512-GGUF:Q4_K_M (a kind of GGUF)"
            )
        from model.checkpoint.hub import download

        found = download(model, revision=revision, progress=progress, weights=weights)
    if is_gguf(found):
        return _whole(found)
    layout(found)
    return found


def resolve_again(model: str, found: Path, *, progress: Progress) -> Path:
    """Return the path of `model`, which was `found` before, for another engine. Missing files are downloaded.

    A hub model keeps its revision, which names the directory: the newest one may be another model.
    Raises ModelError as `resolve` does.
    """
    if not is_hub_name(model):
        return resolve(model, progress=progress)
    revision: str | None = found.name
    try:
        if found.suffix.lower() == ".gguf":
            from model.checkpoint.hub import revision_of

            revision = revision_of(found)
            if all(path.is_file() for path in find_parts(found)):
                return found
        else:
            find_shards(found)
            return found
    except ModelError:
        pass
    return resolve(model, revision=revision, progress=progress)


def default_name(model: str) -> str:
    """Return the id of a served model: hub name, directory's name, or lower-case stem of the GGUF; never a path."""
    path = Path(model).expanduser()
    if path.suffix.lower() == ".gguf" and not path.is_dir():
        return whole_name(path.stem).lower()
    if path.exists() or not _HUB_NAME.fullmatch(model):
        return path.resolve().name or EMBEDDED
    return model


def _looked_up(model: str) -> tuple[Path, bool, bool]:
    """Look up the path, and whether it is a directory or a file. Raises ModelError if the system cannot tell."""
    try:
        path = Path(model).expanduser()
        return path, path.is_dir(), path.is_file()
    except (OSError, RuntimeError) as error:  # a name that is too long, a folder without permission, no such user
        raise ModelError(f"there is no model at {model[:100]!r}: {one_line(error)}; check the path") from error


def is_hub_name(model: str) -> bool:
    """Return whether MODEL is a name on the hub: not if there is a file or directory of this name."""
    return _HUB_NAME.fullmatch(model) is not None and not Path(model).expanduser().exists()


def _whole(source: Path) -> Path:
    """Return the GGUF file beside its other parts.

    A link is followed, except to a name without a suffix, which the hub's cache gives to contents.
    """
    real = source.resolve()
    return real if real.suffix.lower() == ".gguf" else source.absolute()
