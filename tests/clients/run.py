"""Runs the tests of clients, each in a virtual environment of its own, against one live server.

`python -m tests.clients.run lm_eval` installs tests/clients/lm_eval.txt (and pytest) into .clients/lm_eval and runs
tests/clients/test_lm_eval.py there; without a name, all of them. A test finds the server's address in NORIA_URL and the
model's directory, for its tokenizer, in NORIA_MODEL_DIR. PIP_ARGS goes to every pip install.
"""

import os
import shlex
import subprocess
import sys
import venv
from pathlib import Path

from model.checkpoint.resolve import resolve
from tests.e2e.live import MODEL, serving

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".clients"


def prepared(name: str) -> Path:
    """The client's Python; its packages are installed again only when their list has changed."""
    directory, wanted = ENVIRONMENTS / name, HERE / f"{name}.txt"
    python, installed = directory / "bin" / "python", directory / "installed.txt"
    if not installed.is_file() or installed.read_text() != wanted.read_text():
        venv.create(directory, clear=True, with_pip=True)
        options = shlex.split(os.environ.get("PIP_ARGS", ""))
        install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options]
        subprocess.run([*install, "pytest", "-r", wanted], check=True)
        installed.write_text(wanted.read_text())
    return python


def main() -> int:
    names = sys.argv[1:] or sorted(path.stem for path in HERE.glob("*.txt"))
    pythons = {name: prepared(name) for name in names}
    failed = []
    with serving() as server:
        environment = {**os.environ, "NORIA_URL": server.url, "NORIA_MODEL_DIR": str(resolve(MODEL))}
        for name, python in pythons.items():
            command = [python, "-m", "pytest", "-c", HERE / "pytest.ini", HERE / f"test_{name}.py"]
            if subprocess.run(command, env=environment, check=False).returncode:
                failed.append(name)
    print(f"{len(names) - len(failed)} of {len(names)} clients pass", *failed, sep="\nfailed: ")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
