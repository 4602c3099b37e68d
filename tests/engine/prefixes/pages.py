"""Pages to write, and the bytes that a server would read back."""

from hashlib import sha256
from pathlib import Path

from service.engine.prefixes.files import PageFiles, PageKey
from service.engine.scheduling.pages import page_content, page_name

PRINT, OTHER_PRINT = "0" * 31 + "1", "0" * 31 + "2"
N_BYTES = 96


def key(number: int, pool: int = 0, parent: bytes = b"") -> PageKey:
    """The key of a page with other tokens for each number."""
    tokens = [number, 1, 2, 3]
    return PageKey(pool, page_name(parent, tokens), parent, page_content(tokens))


def data(number: int, n_bytes: int = N_BYTES) -> memoryview:
    """Bytes that differ from page to page."""
    block = sha256(number.to_bytes(8, "little")).digest()
    return memoryview((block * (n_bytes // len(block) + 1))[:n_bytes])


def files(directory: Path, limit: int = 2**20, fingerprint: str = PRINT) -> PageFiles:
    return PageFiles(directory, fingerprint, limit, "a model")


def paths(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*.page"))
