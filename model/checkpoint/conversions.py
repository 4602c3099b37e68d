"""The folder for what a start keeps for later ones."""

import os
from pathlib import Path

from model.errors import ModelError


def conversions_folder(cache_dir: Path | None) -> Path:
    """`cache_dir`, else `$XDG_CACHE_HOME/noria`, else `~/.cache/noria`. Raises ModelError for a user without a home."""
    try:
        if cache_dir is not None:
            return cache_dir.expanduser()
        return Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "noria"
    except RuntimeError as error:
        raise ModelError(f"there is no folder for the cache: {error}; name one with --cache-dir") from error
