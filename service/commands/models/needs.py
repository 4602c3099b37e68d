"""The memory that a model needs on this machine: its weights, a step, and one sequence that fills the context."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

from model.machine.gpu import gpu_memory
from model.machine.host import free_memory
from model.memory.plan import make_plan
from model.options import RunnerOptions


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes that serving takes, with a sequence of `context` tokens, and what is free on `device`, cpu or cuda."""

    n_bytes: int
    context: int
    device: str
    free: int

    @property
    def fits(self) -> bool:
        return self.n_bytes <= self.free


def need_of(directory: Path) -> MemoryUse:
    """Return the need of the model in a directory with default flags. Raises ModelError if Noria cannot serve it."""
    device, free = this_machine()
    plan = make_plan(directory, RunnerOptions(str(directory), device=device), None)
    return MemoryUse(plan.weights + plan.step + plan.fits[-1].n_bytes, plan.context, device, free)


@cache
def this_machine() -> tuple[str, int]:
    """Return the device that `--device auto` chooses, and its free memory in bytes."""
    free = gpu_memory("free")
    return ("cpu", free_memory()) if free is None else ("cuda", free)
