"""Download of a model from the Hugging Face hub: only the files that serving needs."""

import logging
from collections.abc import Callable, Iterable
from glob import escape
from pathlib import Path
from typing import Any

from model.checkpoint.files import Progress
from model.checkpoint.gguf.kinds import choose, described, find_kinds
from model.errors import ModelError, one_line

log = logging.getLogger(__name__)

_TEXT = ("config.json", "params.json", "quantize_config.json", "generation_config.json")
_TOKENIZER = ("tekken.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "tokenizer.model.v*")
_TEMPLATES = (
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/*.jinja",
)
_HF_WEIGHTS = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
_NATIVE_WEIGHTS = ("consolidated*.safetensors",)

Fetch = Callable[[Iterable[str], type[Any]], Path]
"""Downloads the files that match the patterns; returns the directory of the revision."""


def download(model: str, *, revision: str | None, progress: Progress, weights: bool = True) -> Path:
    """The local directory of hub model "org/name", or the first GGUF file of "org/name:KIND".

    Files that are not there yet are downloaded. Weights in Mistral's native format are downloaded only if there are
    none in Hugging Face's, a GGUF file only if there are neither or a kind is named. Without `weights` only the
    configuration is downloaded; that of a GGUF file is in the file. HF_ENDPOINT, HF_HOME and HF_TOKEN apply. Without a
    connection a complete earlier download is used. Raises ModelError, one line.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    name, _, kind = model.partition(":")

    def fetch(patterns: Iterable[str], tqdm_class: type[Any]) -> Path:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns), tqdm_class=tqdm_class))

    progress("downloading", 0.0)
    try:
        files = _files(name, revision)
        if kind or not any(file.endswith(".safetensors") for file in files):
            return _fetch_gguf(name, kind or None, files, fetch, progress)
        return _fetch_safetensors(fetch, progress) if weights else _fetch_config(fetch)
    except GatedRepoError as error:
        raise ModelError(f"{name} needs your consent on the hub: accept its licence there and set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"{name} is no local path and no model on the hub; for a private one set HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise ModelError(f"{name} has no revision {revision!r} on the hub; check --revision") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{name} cannot be downloaded from the hub: {one_line(error)}") from error


def revision_of(file: Path) -> str | None:
    """The commit of a file in the hub's cache, which has it as a directory's name; None for another file."""
    parts = file.parts
    return parts[parts.index("snapshots") + 1] if "snapshots" in parts[:-2] else None


def _files(name: str, revision: str | None) -> list[str]:
    """Names of the files of a revision; without a connection, of those that are there."""
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
    quiet = _bar(lambda stage, fraction: None)
    directory = fetch(("config.json",), quiet)
    return directory if (directory / "config.json").exists() else fetch(("params.json",), quiet)


def _fetch_safetensors(fetch: Fetch, progress: Progress) -> Path:
    quiet, reporting = _bar(lambda stage, fraction: None), _bar(progress)
    directory = fetch((*_TEXT, *_TEMPLATES, *_TOKENIZER, "model.safetensors.index.json"), quiet)
    if (directory / "config.json").exists():
        directory = fetch(_HF_WEIGHTS, reporting)
    if not any(directory.glob("model*.safetensors")):
        directory = fetch(_NATIVE_WEIGHTS, reporting)
    progress("downloading", 1.0)
    return directory


def _fetch_gguf(name: str, kind: str | None, files: Iterable[str], fetch: Fetch, progress: Progress) -> Path:
    """The first file of the model of this kind. Raises ModelError if there is none."""
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
    directory = fetch(map(escape, kinds[chosen]), _bar(progress))
    progress("downloading", 1.0)
    return directory / kinds[chosen][0]


def _bar(progress: Progress) -> type[Any]:
    """A progress bar class for huggingface_hub that reports a fraction of the bytes and prints nothing."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})
            self.total = options.get("total") or 0
            # huggingface_hub counts bytes twice, when they arrive and when they are written: report the second.
            self.counts_bytes = options.get("unit") == "B" and "Downloading" not in options.get("desc", "")

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if self.counts_bytes and self.total:
                progress("downloading", min(self.n / self.total, 1.0))

    return Bar
