"""Runs a client's programs as a user who has installed nothing else and has no network."""

import shutil
import subprocess
import sys
from pathlib import Path

from tests.agents.proxy import PATIENCE, Record

ENVIRONMENT = Path(sys.executable).parents[1]
MODULES = ENVIRONMENT / "node_modules"


class Programs:
    """Programs in the folder `work`, whose home is the empty folder `home`."""

    def __init__(self, record: Record, folder: Path) -> None:
        self.record = record
        self.home, self.work = folder / "home", folder / "work"
        self.home.mkdir()
        self.work.mkdir()
        self._variables = {
            "PATH": f"{ENVIRONMENT / 'bin'}:{MODULES / '.bin'}:/usr/bin:/bin",
            "HOME": str(self.home),
            "TMPDIR": str(folder),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "NO_COLOR": "1",
            "DO_NOT_TRACK": "1",
            "HTTP_PROXY": record.url,
            "HTTPS_PROXY": record.url,
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def run(self, *command: str | Path, fails: bool = False, text: str = "", **variables: str) -> str:
        """What a program prints that reads `text` and ends with success, or that `fails`."""
        done = subprocess.run(
            command,
            cwd=self.work,
            env={**self._variables, **variables},
            input=text,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        said = "\n".join([f"exit code {done.returncode}", done.stdout, done.stderr, *self.record.errors])
        assert bool(done.returncode) == fails, said
        return done.stdout

    def script(self, file: Path, **variables: str) -> str:
        """What Node's test runner prints for a file: it lies where Node finds the modules."""
        return self.run("node", "--test", shutil.copy(file, ENVIRONMENT), fails=False, text="", **variables)
