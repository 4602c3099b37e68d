"""How many threads compute: as many as this process has cores, in truth. No torch."""

import os
from collections.abc import Iterator
from pathlib import Path

from model.errors import OptionError


def choose_threads(asked: int | None = None, root: Path = Path("/")) -> int:
    """`asked`, else OMP_NUM_THREADS, else the cores that affinity and the control groups' quotas leave, at least 1.

    Two hyper-threads count as one core. Raises OptionError for more than there are processors, or less than 1.
    """
    allowed = _processors()
    if asked is None:
        given = os.environ.get("OMP_NUM_THREADS", "")
        wanted = int(given) if given.isdigit() else min([_cores(root, allowed), *_quotas(root)])
        return max(1, min(wanted, len(allowed)))
    if not 1 <= asked <= len(allowed):
        raise OptionError(f"--threads must be 1..{len(allowed)}, the processors this process may use, got {asked}")
    return asked


def _processors() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _cores(root: Path, allowed: set[int]) -> int:
    """Cores that the allowed processors belong to; siblings share one."""
    topology = root / "sys/devices/system/cpu"
    names = (_text(topology / f"cpu{number}/topology/thread_siblings_list") or str(number) for number in allowed)
    return len(set(names))


def _quotas(root: Path) -> Iterator[int]:
    """Whole processors that each control group of this process, up to the root, may use (versions 1 and 2)."""
    paths = [line.rsplit(":", 1)[1].strip("/") for line in _text(root / "proc/self/cgroup").splitlines()]
    for folder in {parent for path in ["", *paths] for parent in (Path(path), *Path(path).parents)}:
        first = root / "sys/fs/cgroup/cpu" / folder
        limits = (
            _text(root / "sys/fs/cgroup" / folder / "cpu.max"),
            _text(first / "cpu.cfs_quota_us") + " " + _text(first / "cpu.cfs_period_us"),
        )
        for quota, _, period in (limit.partition(" ") for limit in limits):
            if quota.isdigit() and period.isdigit():  # not "max", -1 or missing
                yield int(quota) // int(period)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
