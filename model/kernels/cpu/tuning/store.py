"""The file of chosen tiles: small, written at once, read only by the machine and the library that it was made for."""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from model.errors import one_line

log = logging.getLogger(__name__)

Chosen = Mapping[str, str]
"""The name of a tile for each class of rows, by the first number of rows of the class."""


@dataclass(frozen=True, slots=True)
class Store:
    """The file in `folder` for this `place`: the processor, the variant, the number of threads.

    What was chosen with another `library` counts as missing, and is overwritten. Without a folder nothing is kept.
    """

    folder: Path | None
    place: Mapping[str, str]
    library: str

    @property
    def path(self) -> Path | None:
        """The file."""
        digest = hashlib.sha256(json.dumps(self.place, sort_keys=True).encode()).hexdigest()
        return None if self.folder is None else self.folder / f"tiles-{digest[:16]}.json"

    def read(self) -> Mapping[str, Chosen]:
        """The tiles that were kept for each shape of weights; empty if there is nothing that can be used."""
        if self.path is None:
            return {}
        try:
            found = json.loads(self.path.read_text(encoding="utf-8"))
            if (found["place"], found["library"]) != (self.place, self.library):
                return {}
            return {shape: {first: str(tile) for first, tile in by.items()} for shape, by in found["tiles"].items()}
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            log.info("the kept tiles cannot be read, they are timed again: %s", one_line(error))
            return {}

    def write(self, tiles: Mapping[str, Chosen]) -> None:
        """Keep these tiles, and no others. A file that cannot be written is no error."""
        if (path := self.path) is None:
            return
        content = {"place": self.place, "library": self.library, "tiles": tiles}
        partial = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(json.dumps(content, indent=1), encoding="utf-8")
            partial.replace(path)
        except OSError as error:
            log.info("the chosen tiles cannot be kept, the next start times them again: %s", one_line(error))
            with suppress(OSError):
                partial.unlink()
