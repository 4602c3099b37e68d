"""Runs the tests of clients, each in a virtual environment of its own, against one live server.

`python -m tests.clients.run lm_eval` installs tests/clients/lm_eval.txt (and pytest) into .clients/lm_eval and runs
tests/clients/test_lm_eval.py there; without a name, all of them. A client without such a list is no Python package:
its test runs in our own environment. A test finds the server's address in NORIA_URL and the model's directory, for its
tokenizer, in NORIA_MODEL_DIR. PIP_ARGS goes to every pip install.
"""

import os
import shlex
import subprocess
import sys
import time
import venv
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from model.checkpoint.resolve import resolve
from tests.e2e.server import MODEL, serving

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".clients"
NAMES = sorted(path.stem.removeprefix("test_") for path in HERE.glob("test_*.py"))
INSTALLS = 2
"""Number of environments that are made at the same time, while tests of other clients run."""


def run(*command: str | Path, **variables: str) -> str:
    """The output of a command that failed; empty for one that succeeded."""
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)
    return f"exit code {done.returncode}\n{done.stdout}{done.stderr}" if done.returncode else ""


def prepared(name: str) -> tuple[Path, str]:
    """The client's Python and what failed while it was made; made again only when the list of packages has changed."""
    wanted, directory = HERE / f"{name}.txt", ENVIRONMENTS / name
    if not wanted.is_file():
        return Path(sys.executable), ""
    python, installed = directory / "bin" / "python", directory / "installed.txt"
    if installed.is_file() and installed.read_text() == wanted.read_text():
        return python, ""
    venv.create(directory, clear=True)
    install: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "--quiet",
        "--disable-pip-version-check",
        "install",
    ]
    options = shlex.split(os.environ.get("PIP_ARGS", ""))
    failure = run(*install, "--no-compile", *options, "pytest", "-r", wanted)
    if not failure:
        installed.write_text(wanted.read_text())
    return python, failure


def main() -> int:
    names = sys.argv[1:] or NAMES
    failed = []
    with ThreadPoolExecutor(INSTALLS) as pool, serving() as server:
        variables = {"NORIA_URL": server.url, "NORIA_MODEL_DIR": str(resolve(MODEL))}
        for name, (python, failure) in zip(names, pool.map(prepared, names), strict=True):
            started = time.monotonic()
            test: list[str | Path] = [python, "-m", "pytest", "-c", HERE / "pytest.ini", HERE / f"test_{name}.py"]
            failure = failure or run(*test, **variables)
            print(f"{name}: {failure or f'passes in {time.monotonic() - started:.0f} s'}", flush=True)
            failed += [name] if failure else []
    print(f"{len(names) - len(failed)} of {len(names)} clients pass", *failed, sep="\nfailed: ")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
