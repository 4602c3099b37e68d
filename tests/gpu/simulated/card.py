"""The variables of the environment that give a child process a simulated card."""

import os
import struct
from dataclasses import dataclass
from pathlib import Path

HOOKS = Path(__file__).parent / "hooks"
ROW = struct.Struct("iq")
"""A row of the table of memory: a process, and its bytes (cuda/memory.cpp)."""
CONTEXT = 480 * 2**20
"""Bytes of a process that has a context."""


@dataclass(frozen=True)
class Card:
    """A card of this compute capability. `folder` has what the processes on it share."""

    capability: str
    folder: Path
    gib: float = 79.1

    @property
    def own(self) -> dict[str, str]:
        """The variables of the card itself."""
        return {
            "SIM_SM": self.capability.replace(".", ""),
            "SIM_GIB": str(self.gib),
            "SIM_SHM": str(self.folder / "memory"),
            "SIM_LOG": str(self.folder / "log"),
            "SIM_BROKEN": str(self.folder / "broken"),
        }

    def variables(self) -> dict[str, str]:
        """Of a server whose kernels compute nothing. It does not copy weights, which nobody reads."""
        paths = (str(HOOKS / "noop"), os.environ["PYTHONPATH"])
        return self.own | {"SIM_SKIP": "100000", "PYTHONPATH": os.pathsep.join(paths)}

    @property
    def refusals(self) -> str:
        """What a real device would have refused."""
        log = self.folder / "log"
        return log.read_text() if log.exists() else ""

    def break_down(self, pid: int) -> None:
        """From now on each call of CUDA in this process fails."""
        part = self.folder / "broken.part"
        part.write_text(str(pid))
        part.rename(self.folder / "broken")

    def used(self) -> dict[int, int]:
        """Bytes of each process that has a context."""
        table = (self.folder / "memory").read_bytes()
        rows = (ROW.unpack_from(table, at) for at in range(0, len(table), ROW.size))
        return {pid: n_bytes for pid, n_bytes in rows if pid and Path(f"/proc/{pid}").exists()}
