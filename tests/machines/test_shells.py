"""What a user's shell may have set before it starts the server."""

import os
from pathlib import Path

import pytest

from tests.machines.serving import ANSWER, SERVE, refused, served


def after(line: str) -> list[str]:
    """The command of a shell that runs this line, then serves."""
    return ["sh", "-c", f'{line} && exec "$@"', "sh", *SERVE]


@pytest.mark.parametrize(
    "line",
    [
        "export PYTHONOPTIMIZE=2",
        "export OMP_NUM_THREADS=²",
        "export OMP_NUM_THREADS=4,2",
        "export LC_ALL=POSIX",
        "unset HOME",
        "umask 000",
        "umask 077",
        "ulimit -n 64",
        "ulimit -v 3000000",
    ],
)
def test_it_serves_after(line: str) -> None:
    with served(after(line)) as server:
        assert server.answer() == ANSWER


def test_too_few_addresses_are_refused() -> None:
    line = "noria: ulimit -v allows 500000 kB, and PyTorch alone needs 1048576 kB; raise it"
    assert refused(after("ulimit -v 500000")) == line


def test_modules_of_others_on_the_path(tmp_path: Path) -> None:
    """`make serve`: somebody's model.py and service.py are not ours."""
    for name in ("model.py", "service.py"):
        (tmp_path / name).write_text("raise SystemExit('this is not Noria')\n")
    with served(["make", "serve"], {"PYTHONPATH": str(tmp_path)}) as server:
        assert server.answer() == ANSWER


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_user_without_a_name_and_a_home() -> None:
    """As under `docker run --user 12345`, where all files are root's."""
    reads = ("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")  # this checkout may be in root's home
    user = ("setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", *reads, "env", "-u", "HOME")
    with served([*user, *SERVE]) as server:
        assert server.answer() == ANSWER
