"""Cores and memory of a machine whose files are in a temporary folder."""

import os
from contextlib import nullcontext
from pathlib import Path

import pytest

from model.errors import NoriaError, OptionError
from model.machine.host import check_addresses, choose_threads, free_memory


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def topology(siblings: dict[int, str]) -> dict[str, str]:
    return {f"sys/devices/system/cpu/cpu{n}/topology/thread_siblings_list": f"{who}\n" for n, who in siblings.items()}


def test_every_processor_where_nothing_else_is_known(tmp_path: Path) -> None:
    assert choose_threads(root=tmp_path) == 8


def test_hyper_threads_of_a_core_count_once(tmp_path: Path) -> None:
    assert choose_threads(root=write(tmp_path, topology({n: f"{n % 4},{n % 4 + 4}" for n in range(8)}))) == 4


def test_only_allowed_processors_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0, 1, 5}, raising=False)
    assert choose_threads(root=write(tmp_path, topology({n: f"{n % 4},{n % 4 + 4}" for n in range(8)}))) == 2


@pytest.mark.parametrize(
    ("files", "n"),
    [
        ({"sys/fs/cgroup/a/b/cpu.max": "max 100000", "sys/fs/cgroup/a/cpu.max": "350000 100000"}, 3),
        ({"sys/fs/cgroup/a/b/cpu.max": "150000 100000"}, 1),
        ({"sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ({"sys/fs/cgroup/other/cpu.max": "100000 100000"}, 8),
    ],
)
def test_quotas_of_this_groups_and_those_above(files: dict[str, str], n: int, tmp_path: Path) -> None:
    assert choose_threads(root=write(tmp_path, {"proc/self/cgroup": "0::/a/b\n", **files})) == n


def test_the_option_overrides_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert choose_threads(root=tmp_path) == 3
    assert choose_threads(5, root=tmp_path) == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "99")
    assert choose_threads(root=tmp_path) == 8


@pytest.mark.parametrize(
    ("value", "n"),
    [
        *(("3,2", 3), (" 03 ", 3), ("+3", 3), ("9" * 9, 8)),
        *((value, 8) for value in ("", "0", "-1", "²", "٣", "1e0", "2.0", "two", ",1", "1" * 5000)),
    ],
)
def test_a_variable_that_openmp_ignores_is_ignored(
    value: str, n: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", value)
    assert choose_threads(root=tmp_path) == n


@pytest.mark.parametrize("requested", [0, -1, 9])
def test_an_option_out_of_range_names_the_flag_and_the_limit(requested: int, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=rf"--threads must be 1 to 8,.*got {requested}"):
        choose_threads(requested, root=tmp_path)


def test_without_affinity_the_machine_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    assert choose_threads(root=tmp_path) == 6


def test_free_memory_of_the_machine(tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/meminfo": "MemTotal: 900 kB\nMemAvailable:    500 kB\n"})
    assert free_memory(root) == 500 * 1024


@pytest.mark.parametrize(("limit", "left"), [("unlimited", 500 * 1024), ("450000", 450_000 - 409_600), ("4096", 0)])
def test_address_space_is_limited(limit: str, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", lambda name: 4096)
    files = {
        "proc/meminfo": "MemAvailable: 500 kB\n",
        "proc/self/limits": f"Max resident set  unlimited  unlimited  bytes\nMax address space  {limit}  9  bytes\n",
        "proc/self/statm": "100 50 20 1 0 60 0\n",
    }
    assert free_memory(write(tmp_path, files)) == left


@pytest.mark.parametrize(("limit", "allowed"), [("unlimited", True), (str(2**30), True), (str(2**30 - 1024), False)])
def test_a_limit_of_addresses_that_pytorch_exceeds_is_refused(limit: str, allowed: bool, tmp_path: Path) -> None:
    root = write(tmp_path, {"proc/self/limits": f"Max address space  {limit}  unlimited  bytes\n"})
    line = r"ulimit -v allows 1048575 kB, and PyTorch alone needs 1048576 kB"
    with nullcontext() if allowed else pytest.raises(NoriaError, match=line):
        check_addresses(root)


V2 = {
    "proc/self/cgroup": "0::/pod/container\n",
    "sys/fs/cgroup/pod/cpu.max": "300000 100000\n",
    "sys/fs/cgroup/pod/memory.max": "90000\n",
    "sys/fs/cgroup/pod/memory.current": "25000\n",
    "sys/fs/cgroup/pod/memory.stat": "anon 1\ninactive_file 5000\n",
    "sys/fs/cgroup/pod/container/cpu.max": "max 100000\n",
    "sys/fs/cgroup/pod/container/memory.max": "max\n",
    "sys/fs/cgroup/pod/container/memory.current": "15000\n",
}
V1 = {
    "proc/self/cgroup": "4:memory:/pod/container\n3:cpu,cpuacct:/pod/container\n",
    "sys/fs/cgroup/cpu/pod/cpu.cfs_quota_us": "300000\n",
    "sys/fs/cgroup/cpu/pod/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/cpu/pod/container/cpu.cfs_quota_us": "-1\n",
    "sys/fs/cgroup/cpu/pod/container/cpu.cfs_period_us": "100000\n",
    "sys/fs/cgroup/memory/pod/memory.limit_in_bytes": "90000\n",
    "sys/fs/cgroup/memory/pod/memory.usage_in_bytes": "20000\n",
}
IN_CONTAINER = {name.replace("/pod/", "/"): text for name, text in V1.items() if "/container/" not in name}


@pytest.mark.parametrize("files", [V2, V1, IN_CONTAINER, V1 | V2], ids=["v2", "v1", "v1 in a container", "both"])
def test_one_reader_finds_the_limits_of_cores_and_memory(files: dict[str, str], tmp_path: Path) -> None:
    """Each group above this process's own limits it too, and in a container the mount shows the group as its root."""
    root = write(tmp_path, {"proc/meminfo": "MemAvailable: 500 kB\n", **files})
    assert (choose_threads(root=root), free_memory(root)) == (3, 70_000)
