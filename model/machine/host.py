"""The cores and the memory that this process may use, as the machine and its control groups limit them. No torch."""

import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path

from model.errors import NoriaError, OptionError

LIMITS = {
    "cpu": (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")),
    "memory": (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")),
}
"""Files of a control group by controller, in version 2 and in version 1. Together they hold two numbers."""
KERNELS = "NORIA_KERNELS"
"""The variable that names a variant of the CPU kernels. It is no flag: it is for tests and reports of faults."""
OPENMP = re.compile(r"\s*\+?0*([1-9]\d{0,8})\s*(,.*)?", re.ASCII)
"""A value of OMP_NUM_THREADS: a number, and others for nested regions. OpenMP reports and ignores any other value."""

LEAST_ADDRESSES = 2**30
"""Bytes of addresses. The engine has 0.9 GiB when PyTorch for a CPU is imported, before any weights."""


def choose_threads(requested: int | None = None, root: Path = Path("/")) -> int:
    """Choose `requested`, else OMP_NUM_THREADS, else the cores that affinity and control groups allow, at least 1.

    Two hyper-threads count as one core. Raises OptionError for less than 1, and for more than the processors allowed.
    """
    allowed = _processors()
    if requested is None:
        named = OPENMP.fullmatch(os.environ.get("OMP_NUM_THREADS", ""))
        threads = int(named[1]) if named else min([_cores(root, allowed), *_quotas(root)])
        return max(1, min(threads, len(allowed)))
    if not 1 <= requested <= len(allowed):
        raise OptionError(
            f"--threads must be 1 to {len(allowed)}, the number of processors that this process may use, "
            f"got {requested}"
        )
    return requested


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes that this process can allocate: the least that machine, control groups and `ulimit -v` allow."""
    return min([_available(root), *_left_by_groups(root), *_left_of_addresses(root)])


def check_addresses(root: Path = Path("/")) -> None:
    """Raise NoriaError if `ulimit -v` is too low for PyTorch, whose import then aborts or hangs."""
    limit = _address_limit(root)
    if limit is not None and limit < LEAST_ADDRESSES:
        raise NoriaError(
            f"ulimit -v allows {limit >> 10} kB, and PyTorch alone needs {LEAST_ADDRESSES >> 10} kB; raise it"
        )


def return_free_memory() -> None:
    """Give freed memory back to the system. glibc keeps what lies between two pieces that are in use."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _processors() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _cores(root: Path, allowed: set[int]) -> int:
    """Count the cores that the allowed processors belong to: hyper-threads of a core name the same siblings."""
    topology = root / "sys/devices/system/cpu"
    names = (text(topology / f"cpu{number}/topology/thread_siblings_list") or str(number) for number in allowed)
    return len(set(names))


def _quotas(root: Path) -> Iterator[int]:
    """Yield the whole processors that each control group allows."""
    for _, quota, period in _limits(root, "cpu"):
        yield quota // period


def _available(root: Path) -> int:
    for line in text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _left_by_groups(root: Path) -> Iterator[int]:
    """Yield bytes left to each control group. File pages count as used, but the kernel reclaims them on demand."""
    for folder, limit, used in _limits(root, "memory"):
        lines = map(str.split, text(folder / "memory.stat").splitlines())
        reclaimable = sum(int(value) for name, value in lines if name == "inactive_file")
        yield max(limit - used + reclaimable, 0)


def _left_of_addresses(root: Path) -> Iterator[int]:
    """Yield the bytes that `ulimit -v` leaves, where it limits the addresses of this process."""
    limit, pages = _address_limit(root), text(root / "proc/self/statm").split()
    if limit is not None and pages:
        yield max(limit - int(pages[0]) * os.sysconf("SC_PAGE_SIZE"), 0)


def _address_limit(root: Path) -> int | None:
    found = re.search(r"^Max address space +(\d+)", text(root / "proc/self/limits"), re.MULTILINE)
    return int(found[1]) if found else None


def _limits(root: Path, controller: str) -> Iterator[tuple[Path, int, int]]:
    """Yield folder and two numbers of each control group that limits this process: its own group and those above it.

    The numbers are quota and period in microseconds ("cpu"), or limit and usage in bytes ("memory").
    """
    lines = text(root / "proc/self/cgroup").splitlines()
    groups = [Path(), *(Path(line.rsplit(":", 1)[1].strip("/")) for line in lines)]
    nested = {parent for group in groups for parent in (group, *group.parents)}
    mounts = (root / "sys/fs/cgroup", root / "sys/fs/cgroup" / controller)
    for mount, files in zip(mounts, LIMITS[controller], strict=True):
        for folder in (mount / group for group in nested):
            numbers = " ".join(text(folder / file) for file in files).split()
            if len(numbers) == 2 and all(map(str.isdigit, numbers)):  # not "max", -1 or missing
                yield folder, int(numbers[0]), int(numbers[1])


def text(path: Path) -> str:
    """Read a small file of the system; empty if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return ""
