"""The numbers of calls that the simulated runtime of this process has counted."""

import ctypes
from typing import NamedTuple


class Counts(NamedTuple):
    """See `Count` of cuda/sim.h. A replay of a graph is one launch; its kernels are not counted."""

    kernels: int
    copies: int
    fills: int
    replays: int
    allocations: int
    freed: int
    host_allocations: int
    stream_waits: int
    device_waits: int
    event_waits: int
    refused: int
    pageable: int

    @property
    def waits(self) -> int:
        return self.stream_waits + self.device_waits + self.event_waits

    @property
    def launches(self) -> int:
        return self.kernels + self.copies + self.fills + self.replays

    def since(self, before: "Counts") -> "Counts":
        return Counts(*(now - then for now, then in zip(self, before, strict=True)))


def counts() -> Counts:
    library = ctypes.CDLL("libcudart.so.13")
    library.sim_counts.restype = ctypes.POINTER(ctypes.c_long * len(Counts._fields))
    return Counts(*library.sim_counts().contents)
