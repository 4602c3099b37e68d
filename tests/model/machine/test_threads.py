"""Threads to compute with: the machine's files as they are read from a folder."""

import os
from pathlib import Path

import pytest

from model.errors import OptionError
from model.machine import host as threads
from model.machine.host import choose_threads
from tests.model.files import write


@pytest.fixture(autouse=True)
def eight_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)


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
        ({"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "200000", "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000"}, 2),
        ({"sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1", "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_quotas_of_this_groups_and_those_above(files: dict[str, str], n: int, tmp_path: Path) -> None:
    assert choose_threads(root=write(tmp_path, {"proc/self/cgroup": "0::/a/b\n", **files})) == n


def test_a_wish_goes_first_then_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert choose_threads(root=tmp_path) == 3
    assert choose_threads(5, root=tmp_path) == 5
    monkeypatch.setenv("OMP_NUM_THREADS", "99")
    assert choose_threads(root=tmp_path) == 8


@pytest.mark.parametrize("asked", [0, -1, 9])
def test_a_wish_that_cannot_be_names_the_flag_and_the_limit(asked: int, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=rf"--threads must be 1\.\.8.*got {asked}"):
        choose_threads(asked, root=tmp_path)


def test_without_affinity_the_machine_is_counted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 6)
    assert choose_threads(root=tmp_path) == 6
