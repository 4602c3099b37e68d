"""The models in the hub's cache, under the names that `noria serve` takes. Other programs share the cache."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from model.checkpoint.gguf.kinds import find_kinds


@dataclass(frozen=True, slots=True)
class CachedModel:
    """A model in the cache. `place` is its directory or its first GGUF file, None if there are no weights."""

    name: str
    repository: str
    place: Path | None
    n_bytes: int


def cached_models() -> list[CachedModel]:
    """Return all models in the cache, by name. A repository with GGUF files of several kinds is a model for each."""
    cache = _scan()
    found = (model for repo in cache.repos if repo.repo_type == "model" for model in _models(repo)) if cache else ()
    return sorted(found, key=lambda model: model.name)


def remove(repository: str) -> bool:
    """Delete a repository. Returns whether all of it is gone."""
    cache = _scan()
    repo = next(repo for repo in cache.repos if repo.repo_id == repository and repo.repo_type == "model")
    cache.delete_revisions(*(revision.commit_hash for revision in repo.revisions)).execute()  # it logs its failures
    return not repo.repo_path.exists()


def _scan() -> Any:
    """Return what huggingface_hub finds in its cache; None without one."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        return scan_cache_dir(constants.HF_HUB_CACHE)
    except CacheNotFound:
        return None


def _models(repo: Any) -> Iterator[CachedModel]:
    """Yield the models of one repository: those of GGUF kinds, and one of the other files."""
    newest = max(repo.revisions, key=lambda revision: revision.last_modified)
    links = {file.file_path: file for revision in repo.revisions for file in revision.files}
    kinds = find_kinds(file.file_path.relative_to(newest.snapshot_path).as_posix() for file in newest.files)
    others = set(links)
    parts = []
    for kind, names in kinds.items():
        own = {path for path in links if any(path.as_posix().endswith(f"/{name}") for name in names)}
        others -= own
        parts.append((f"{repo.repo_id}:{kind}" if kind else repo.repo_id, newest.snapshot_path / names[0], own))
    has_weights = any(path.suffix == ".safetensors" for path in others)
    if has_weights or not parts:
        parts.append((repo.repo_id, newest.snapshot_path if has_weights else None, others))
    for name, place, own in parts:
        sizes = {links[path].blob_path: links[path].size_on_disk for path in own}
        yield CachedModel(name, repo.repo_id, place, sum(sizes.values()))
