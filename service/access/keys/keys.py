"""All API keys of a server."""

import hmac
import time
from collections.abc import Callable, Iterable
from hashlib import sha256
from pathlib import Path

from service.access.keys.entry import read_entries
from service.access.keys.key import Key


class Keys:
    """The keys that clients may send: `keys`, and those in the file at `path`. It is false if there are none.

    The constructor raises OptionError for a bad file.
    """

    def __init__(self, keys: Iterable[str], path: Path | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._given = tuple(keys)
        self._path = path
        self._clock = clock
        self._keys: dict[str, Key] = {}
        self.reload()

    def __bool__(self) -> bool:
        return bool(self._keys)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._keys)

    def reload(self) -> None:
        """Read the file again. A key that keeps its name keeps what it has used.

        Raises OptionError for a bad file: the keys are then as before.
        """
        found = {}
        for entry in read_entries(self._given, self._path):
            key = found[entry.name] = self._keys.get(entry.name) or Key(entry, self._clock)
            key.entry = entry
        self._keys = found

    def find(self, candidates: Iterable[bytes]) -> Key | None:
        """The key that is one of `candidates`, if there is one.

        It compares hashes, all of them and each in constant time: the duration says nothing about the keys.
        """
        digests = [sha256(candidate).digest() for candidate in candidates]
        pairs = [(key, digest) for key in self._keys.values() for digest in digests]
        matches = [key for key, digest in pairs if hmac.compare_digest(key.entry.digest, digest)]
        return matches[-1] if matches else None
