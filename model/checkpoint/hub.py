"""Download of the files that serving needs, and no others, from a model hub."""

from pathlib import Path
from typing import Any

from model.checkpoint.files import Progress
from model.errors import ModelError, one_line

_TEXT = ("config.json", "params.json", "generation_config.json", "chat_template.jinja", "tekken.json")
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "tokenizer.model.v*")
_HF_WEIGHTS = ("model.safetensors", "model-*.safetensors", "model.safetensors.index.json")
_NATIVE_WEIGHTS = ("consolidated*.safetensors",)


def download(name: str, *, revision: str | None, progress: Progress, weights: bool = True) -> Path:
    """The local directory of hub model `name` ("org/name"), downloaded as far as it is not there yet.

    Native weights are fetched only where there are none in HF format; without `weights` the configuration is all.
    Honours HF_ENDPOINT, HF_HOME and the token; without a connection a complete earlier download is used. Raises
    ModelError, one line.
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
        directory = fetch((*_TEXT, *_TOKENIZER, "model.safetensors.index.json"), quiet)
        if (directory / "config.json").exists():
            directory = fetch(_HF_WEIGHTS, reporting)
        if not any(directory.glob("model*.safetensors")):
            directory = fetch(_NATIVE_WEIGHTS, reporting)
    except GatedRepoError as error:
        raise ModelError(f"{name} is gated on the hub: accept its licence there and set HF_TOKEN") from error
    except RepositoryNotFoundError as error:
        raise ModelError(f"{name} is neither a local path nor on the hub (or it is private: set HF_TOKEN)") from error
    except RevisionNotFoundError as error:
        raise ModelError(f"{name} has no revision {revision!r} on the hub") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot download {name} from the hub: {one_line(error)}") from error
    if not any(directory.glob("*.safetensors")):
        raise ModelError(f"{name} has no weights in safetensors format on the hub")
    progress("downloading", 1.0)
    return directory


def _bar(progress: Progress) -> type[Any]:
    """A progress bar class as huggingface_hub wants one, which reports bytes as a fraction instead of drawing."""
    from huggingface_hub.utils import tqdm

    class Bar(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})
            self.total = options.get("total") or 0
            # Bytes are counted twice, as they arrive and as they are written: only the second is progress.
            self.counts_bytes = options.get("unit") == "B" and "Downloading" not in options.get("desc", "")

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if self.counts_bytes and self.total:
                progress("downloading", min(self.n / self.total, 1.0))

    return Bar
