"""The files of the page, read once from the package."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ASSETS = Path(__file__).parent / "assets"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
"""Suffix -> media type. Files with other suffixes are not served."""


@dataclass(frozen=True, slots=True)
class File:
    """One file: its bytes, its media type, and a strong ETag of its bytes."""

    content: bytes
    media_type: str
    etag: str


@cache
def files() -> Mapping[str, File]:
    """Return all files of the page by their path below `assets`, such as `chat/view.js`."""
    paths = (path for path in sorted(ASSETS.rglob("*")) if path.suffix in TYPES and path.is_file())
    return {path.relative_to(ASSETS).as_posix(): _read(path) for path in paths}


def _read(path: Path) -> File:
    content = path.read_bytes()
    return File(content, TYPES[path.suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
