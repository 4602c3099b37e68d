"""Disks that cannot be written, in a name space of mounts."""

import subprocess
from pathlib import Path

import pytest

from tests.machines.serving import ANSWER, SERVE, served

MOUNTS = subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0
pytestmark = pytest.mark.skipif(not MOUNTS, reason="this user may not mount")
READ_ONLY = """
mount -o bind,ro / "$0"
for name in proc sys dev; do mount --rbind "/$name" "$0/$name"; done
exec chroot "$0" env -C "$PWD" "$@"
"""
FULL = """
for folder in /tmp /dev/shm; do
  mount -t tmpfs -o size=4k none "$folder"
  ! cat /dev/zero >"$folder/full" 2>/dev/null
done
exec "$@"
"""


def mounted(script: str, folder: Path) -> list[str]:
    return ["unshare", "--mount", "sh", "-ec", script, str(folder), *SERVE]


def test_every_disk_is_read_only(tmp_path: Path) -> None:
    with served(mounted(READ_ONLY, tmp_path)) as server:
        assert server.answer() == ANSWER


def test_the_folders_of_temporary_files_are_full(tmp_path: Path) -> None:
    with served(mounted(FULL, tmp_path)) as server:
        assert server.answer() == ANSWER
