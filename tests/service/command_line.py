"""The command line in this process: `python -m service` would start an engine for `serve`, and import all anew."""

import signal
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, StringIO, TextIOWrapper
from typing import NamedTuple

import pytest

from service import cli


class Done(NamedTuple):
    """The exit code of a command, and what it wrote: the names of `subprocess.CompletedProcess`."""

    returncode: int
    stdout: str
    stderr: str


def noria(*arguments: object, env: dict[str, str] | None = None, typed: str = "") -> Done:
    """Run `noria ARGUMENTS` with the variables `env` beside those of the test; `typed` comes from a pipe."""
    hangup = signal.getsignal(signal.SIGHUP)
    with (
        pytest.MonkeyPatch.context() as patch,
        redirect_stdout(StringIO()) as output,
        redirect_stderr(StringIO()) as errors,
    ):
        patch.setattr("sys.argv", ["noria", *map(str, arguments)])
        patch.setattr("sys.stdin", TextIOWrapper(BytesIO(typed.encode())))
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            cli.main()
        signal.signal(signal.SIGHUP, hangup)
    return Done(int(ended.value.code or 0), output.getvalue(), errors.getvalue())
