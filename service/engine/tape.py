"""The last steps of an engine, in memory of the service that outlives it. The engine writes, the service reads."""

import contextlib
import faulthandler
import math
import mmap
import os
import signal
import struct
import time
import weakref

RECORD, LANDED = struct.Struct("<d5I4f"), struct.Struct("<3f")
FIELDS = ("time", "pid", "step", "tokens", "prompt", "sequences", "plan", "launch", "wait", "commit")
"""Of a step: when it was launched, its engine, number, rows, rows of prompts, sequences, and seconds of its parts.
`launch` lasts until the engine waits for the step. The parts after `plan` are not known before it lands."""
N_STEPS = 2048
BYTES = N_STEPS * RECORD.size
STACK_BYTES = 2**16
STACK_SIGNAL = signal.SIGUSR1


class Tape:
    """The engine's side: a ring of the latest steps, in memory of its own if the service's cannot be had.

    The stacks of all threads go behind the steps, at a crash and at STACK_SIGNAL.
    """

    def __init__(self, path: str = "") -> None:
        self._memory: bytearray | mmap.mmap = bytearray(BYTES)
        with contextlib.suppress(OSError):
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
            self._memory = mmap.mmap(descriptor, BYTES)
            os.lseek(descriptor, BYTES, os.SEEK_SET)
            faulthandler.enable(descriptor)
            faulthandler.register(STACK_SIGNAL, descriptor)
        self._n = max(record[2] for record in RECORD.iter_unpack(self._memory[:]))  # after those of earlier engines

    def begin(self, n_tokens: int, n_prompt: int, n_sequences: int, plan: float) -> int:
        """Write a step that is launched; returns its number."""
        self._n += 1
        facts = time.time(), os.getpid(), self._n, n_tokens, n_prompt, n_sequences, plan, *(math.nan,) * 3
        RECORD.pack_into(self._memory, self._n % N_STEPS * RECORD.size, *facts)
        return self._n

    def end(self, step: int, launch: float, wait: float, commit: float) -> None:
        """Add the times of a step that has landed."""
        LANDED.pack_into(self._memory, (step % N_STEPS + 1) * RECORD.size - LANDED.size, launch, wait, commit)


class SharedTape:
    """The service's side, for one engine of a model after the other. They open it by its `path`."""

    def __init__(self) -> None:
        self._descriptor = os.memfd_create("noria-steps")
        weakref.finalize(self, os.close, self._descriptor)
        os.truncate(self._descriptor, BYTES)
        self.path = f"/proc/{os.getpid()}/fd/{self._descriptor}"

    def steps(self) -> list[list[float | None]]:
        """Return the steps by their FIELDS, the oldest first. Seconds that are not known are None."""
        found = sorted(record for record in RECORD.iter_unpack(os.pread(self._descriptor, BYTES, 0)) if record[0])
        return [[None if value != value else round(value, 6) for value in record] for record in found]

    def take_stacks(self) -> str:
        """Return the stacks that engines have written, and remove them."""
        text = os.pread(self._descriptor, STACK_BYTES, BYTES).decode(errors="replace")
        os.truncate(self._descriptor, BYTES)
        return text.strip("\0")
