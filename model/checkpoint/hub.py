"""Download of a model from the Hugging Face hub: only the files that serving needs."""

import errno
import logging
import shutil
from collections.abc import Callable, Iterable
from glob import escape
from pathlib import Path
from typing import Any

from model.checkpoint.files import Progress
from model.checkpoint.gguf.kinds import choose, described, find_kinds
from model.checkpoint.meter import STAGE, Meter, metered
from model.errors import ModelError, one_line, size

log = logging.getLogger(__name__)

_TEXT = ("config.json", "params.json", "quantize_config.json", "generation_config.json")
_TOKENIZER = (
    *("tekken.json", "tokenizer.json", "tokenizer.model", "tokenizer.model.v*"),
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
)
_TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja")
_HF_WEIGHTS = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
_NATIVE_WEIGHTS = ("consolidated*.safetensors",)

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors for want of space."""
FREE_SPACE = "free some (noria list, noria rm NAME), or move the cache with HF_HOME"
OFFLINE = "set HF_ENDPOINT or HTTPS_PROXY, or copy a directory or .gguf file (docs/trouble.md#the-hub-does-not-answer)"

Fetch = Callable[[Iterable[str], type[Any]], Path]
"""Downloads the files that match the patterns; returns the directory of the revision."""


def download(model: str, *, revision: str | None, progress: Progress, weights: bool = True) -> Path:
    """Return the local directory of hub model "org/name", or the first GGUF file of "org/name:KIND".

    Files that are not there yet are downloaded. Weights in Mistral's native format are downloaded only if there are
    none in Hugging Face's, a GGUF file only if there are neither or a kind is named. Without `weights` only the
    configuration is downloaded; that of a GGUF file is in the file. HF_ENDPOINT, HF_HOME and HF_TOKEN apply. Without a
    connection a complete earlier download is used. Raises ModelError, one line.
    """
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    name, _, kind = model.partition(":")

    def fetch(patterns: Iterable[str], tqdm_class: type[Any]) -> Path:
        chosen = list(patterns)
        _check_space(name, revision, chosen)
        return Path(snapshot_download(name, revision=revision, allow_patterns=chosen, tqdm_class=tqdm_class))

    progress(STAGE, 0.0)
    try:
        files = _files(name, revision)
        with metered(progress) as meter:
            if kind or not any(file.endswith(".safetensors") for file in files):
                return _fetch_gguf(name, kind or None, files, fetch, meter)
            return _fetch_safetensors(fetch, meter) if weights else _fetch_config(fetch)
    except GatedRepoError as error:
        raise ModelError(f"{name} needs your consent on the hub: accept its licence there and set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"{name} is no local path and no model on the hub; for a private one set HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise ModelError(f"{name} has no revision {revision!r} on the hub; check --revision") from error
    except ModelError:
        raise
    except LocalEntryNotFoundError as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        missing = f"it is not on this machine, and {constants.ENDPOINT} does not answer: {one_line(cause)}"
        raise ModelError(f"{name} cannot be downloaded from the hub: {missing}; {OFFLINE}") from error
    except Exception as error:  # also of the HTTP library, which differs between versions
        remedy = f"; {FREE_SPACE}" if isinstance(error, OSError) and error.errno in FULL else ""
        raise ModelError(f"{name} cannot be downloaded from the hub: {one_line(error)}{remedy}") from error


def _check_space(name: str, revision: str | None, patterns: list[str]) -> None:
    """Raise ModelError if the files that are missing do not fit the disk. Without a connection none is missing."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import DryRunError

    try:
        files = snapshot_download(name, revision=revision, allow_patterns=patterns, dry_run=True, tqdm_class=_quiet())
    except DryRunError:
        return
    needed = sum(file.file_size or 0 for file in files if file.will_download)
    free = shutil.disk_usage(_existing(Path(constants.HF_HUB_CACHE))).free
    if needed > free:
        raise ModelError(
            f"{name} needs {size(needed)} more in the hub's cache, whose disk has {size(free)} free; {FREE_SPACE}"
        )


def _existing(path: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    return next(folder for folder in (path, *path.parents) if folder.is_dir())


def revision_of(file: Path) -> str | None:
    """Return the commit of a file in the hub's cache, which has it as a directory's name; None for another file."""
    parts = file.parts
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts[:-2] else None


def _files(name: str, revision: str | None) -> list[str]:
    """Return the names of the files of a revision; without a connection, of those that are there."""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return [file.rfilename for file in HfApi().model_info(name, revision=revision).siblings or ()]
    except HfHubHTTPError:
        raise
    except Exception:  # of the HTTP library, which differs between versions; without an earlier download this raises
        directory = Path(snapshot_download(name, revision=revision, allow_patterns=[]))
        return [path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file()]


def _fetch_config(fetch: Fetch) -> Path:
    directory = fetch(("config.json",), _quiet())
    return directory if (directory / "config.json").exists() else fetch(("params.json",), _quiet())


def _fetch_safetensors(fetch: Fetch, meter: Meter) -> Path:
    directory = fetch((*_TEXT, *_TEMPLATES, *_TOKENIZER, "model.safetensors.index.json"), _quiet())
    if (directory / "config.json").exists():
        directory = fetch(_HF_WEIGHTS, _bar(meter.count))
    if not any(directory.glob("model*.safetensors")):
        directory = fetch(_NATIVE_WEIGHTS, _bar(meter.count))
    return directory


def _fetch_gguf(name: str, kind: str | None, files: Iterable[str], fetch: Fetch, meter: Meter) -> Path:
    """Fetch the model of this kind; return its first file. Raises ModelError if there is none."""
    kinds = find_kinds(files)
    if not kinds and kind is None:
        raise ModelError(
            f"{name} has no weights in safetensors format and no GGUF file on the hub; choose another model"
        )
    chosen = choose(name, kinds, kind)
    if kind is None:
        others = ", ".join(sorted(filter(None, kinds.keys() - {chosen}))) or "no other"
        log.info("%s has no safetensors: serving its GGUF file of %s (%s:KIND chooses)", name, described(chosen), name)
        log.info("other kinds of %s: %s", name, others)
    directory = fetch(map(escape, kinds[chosen]), _bar(meter.count))
    return directory / kinds[chosen][0]


def _quiet() -> type[Any]:
    return _bar(lambda done, total: None)


def _bar(count: Callable[[float, float], None]) -> type[Any]:
    """Return a progress bar class for huggingface_hub that counts bytes, of how many, and prints nothing."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})
            self.total = options.get("total") or 0
            self.counts_bytes = options.get("unit") == "B"

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if self.counts_bytes and self.total:
                count(self.n, self.total)

    return Bar
