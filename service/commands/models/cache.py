"""The models in the hub's cache, under the names that `noria serve` takes.

huggingface_hub keeps a folder for each repository: files under their hashes in `blobs`, and a folder of links for each
revision in `snapshots`. Other programs share it.
"""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.checkpoint.conversions import conversions_folder
from model.checkpoint.gguf.index import INDEX, read_paths
from model.checkpoint.gguf.kinds import find_kinds
from model.errors import ModelError


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in the cache. `place` is its directory or its first GGUF file, None if there are no weights.

    `links` are its files in `folder`, the repository's, and `blobs` those contents that no other model needs.
    `n_models` are in the folder.
    """

    name: str
    place: Path | None
    folder: Path
    n_models: int
    links: frozenset[Path]
    blobs: frozenset[Path]

    @property
    def n_bytes(self) -> int:
        """What removing the model frees."""
        own = {path.resolve() for path in self.folder.rglob("*")} if self.n_models == 1 else self.blobs
        return sum(path.stat().st_size for path in own if path.is_file())


def cached_models() -> list[CachedModel]:
    """All models in the cache, by name. A repository with GGUF files of several kinds is a model for each."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return []
    found = (model for repo in repos if repo.repo_type == "model" for model in _models(repo))
    return sorted(found, key=lambda model: model.name)


def remove(models: Iterable[CachedModel], cache_dir: Path | None) -> None:
    """Delete models, and what was made from their GGUF files. Raises OSError."""
    chosen = list(models)
    made = list(_conversions(frozenset[Path]().union(*(model.blobs for model in chosen)), cache_dir))
    for model in chosen:
        if sum(other.folder == model.folder for other in chosen) == model.n_models:
            made.append(model.folder)
        else:
            for path in (*model.links, *model.blobs):
                path.unlink(missing_ok=True)
    for directory in made:
        shutil.rmtree(directory, ignore_errors=not directory.exists())


def _models(repo: Any) -> Iterator[CachedModel]:
    """The models of one repository: those of GGUF kinds, and what is left."""
    newest = max(repo.revisions, key=lambda revision: revision.last_modified)
    links = {file.file_path: file.blob_path for revision in repo.revisions for file in revision.files}
    kinds = find_kinds(file.file_path.relative_to(newest.snapshot_path).as_posix() for file in newest.files)
    rest = set(links)
    parts = []
    for kind, names in kinds.items():
        own = {path for path in links if any(path.as_posix().endswith(f"/{name}") for name in names)}
        rest -= own
        parts.append((f"{repo.repo_id}:{kind}" if kind else repo.repo_id, newest.snapshot_path / names[0], own))
    has_weights = any(path.suffix == ".safetensors" for path in rest)
    if has_weights or not parts:
        parts.append((repo.repo_id, newest.snapshot_path if has_weights else None, rest))
    for name, place, own in parts:
        shared = {links[path] for path in links.keys() - own}
        blobs = {links[path] for path in own} - shared
        yield CachedModel(name, place, repo.repo_path, len(parts), frozenset(own), frozenset(blobs))


def _conversions(blobs: frozenset[Path], cache_dir: Path | None) -> Iterator[Path]:
    """The directories that were made from GGUF files among these."""
    for index in conversions_folder(cache_dir).glob(f"*/{INDEX}"):
        with suppress(ModelError, LookupError):
            if any(path.resolve() in blobs for path in read_paths(index.parent)):
                yield index.parent
