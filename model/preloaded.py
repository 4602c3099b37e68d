"""Everything that an engine needs, whatever its model: engines are forked from a process that has imported this."""

import contextlib

from model import loading
from model.kernels.cpu import records

__all__ = ["loading"]

with contextlib.suppress(OSError):  # an engine says why it has no compiled kernels
    records.opened()
