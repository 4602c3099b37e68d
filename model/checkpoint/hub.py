"""Download of a model from the Hugging Face hub: only the files that serving needs."""

from pathlib import Path
from typing import Any

from model.checkpoint.files import Progress
from model.errors import ModelError, one_line

_TEXT = ("config.json", "params.json", "generation_config.json", "chat_template.jinja", "chat_template.json")
_TOKENIZER = ("tekken.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "tokenizer.model.v*")
_TEMPLATES = ("additional_chat_templates/*.jinja",)
_HF_WEIGHTS = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
_NATIVE_WEIGHTS = ("consolidated*.safetensors",)


def download(name: str, *, revision: str | None, progress: Progress, weights: bool = True) -> Path:
    """The local directory of hub model `name` ("org/name"). Files that are not there yet are downloaded.

    Weights in Mistral's native format are downloaded only if there are none in Hugging Face's. Without `weights` only
    the configuration is downloaded. HF_ENDPOINT, HF_HOME and HF_TOKEN apply. Without a connection a complete earlier
    download is used. Raises ModelError, one line.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    def fetch(patterns: tuple[str, ...], tqdm_class: type[Any]) -> Path:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(patterns), tqdm_class=tqdm_class))

    progress("downloading", 0.0)
    quiet, reporting = _bar(lambda stage, fraction: None), _bar(progress)
    try:
        if not weights:
            directory = fetch(("config.json",), quiet)
            return directory if (directory / "config.json").exists() else fetch(("params.json",), quiet)
        directory = fetch((*_TEXT, *_TEMPLATES, *_TOKENIZER, "model.safetensors.index.json"), quiet)
        if (directory / "config.json").exists():
            directory = fetch(_HF_WEIGHTS, reporting)
        if not any(directory.glob("model*.safetensors")):
            directory = fetch(_NATIVE_WEIGHTS, reporting)
    except GatedRepoError as error:
        raise ModelError(f"{name} needs your consent on the hub: accept its licence there and set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"{name} is no local path and no model on the hub; for a private one set HF_TOKEN") from error
    except RevisionNotFoundError as error:
        raise ModelError(f"{name} has no revision {revision!r} on the hub; check --revision") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"{name} cannot be downloaded from the hub: {one_line(error)}") from error
    if not any(directory.glob("*.safetensors")):
        raise ModelError(f"{name} has no weights in safetensors format on the hub; choose another model")
    progress("downloading", 1.0)
    return directory


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
