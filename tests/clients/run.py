"""Runs the tests of clients, each folder in an environment of its own, against one live server.

`python -m tests.clients.run lm_eval` installs tests/clients/lm_eval/requirements.txt (and pytest) into .clients/lm_eval
and runs the folder's tests there; without a name, those of all folders. A folder without requirements holds no Python
package: its tests run in our own environment. A folder with a package.json holds clients for Node: its requirements
bring Node and npm, and npm installs what the lock file names. A test finds the server's address in NORIA_URL and the
model's directory, for its tokenizer, in NORIA_MODEL_DIR. A second server has a small random model that hears, named
"hearing": its address is in NORIA_HEARING_URL, and the path of a recording in NORIA_RECORDING. PIP_ARGS goes to every
pip install.
"""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory
from types import MappingProxyType

from model.checkpoint.resolve import resolve
from tests.e2e.paced import PACE
from tests.e2e.server import MODEL, serving
from tests.gguf_models import extracted
from tests.model.audio.files import saved, speech
from tests.model.voxtral import save_native

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".clients"
NAMES = sorted({path.parent.name for path in HERE.glob("*/test_*")})
LISTS = ("requirements.txt", "package.json", "package-lock.json")
"""Files that say what a client's environment holds."""
VERSIONS = ".python-version"
"""The file of a client that needs other versions of Python than ours, one a line. pyenv reads it too."""
MISSING = f"not run: this machine has no Python of the versions in {VERSIONS}"
INSTALLS = 2
"""Number of environments that are made at the same time, while tests of other clients run."""


def run(
    *command: str | Path, directory: Path | None = None, variables: Mapping[str, str] = MappingProxyType({})
) -> str:
    """The output of a command that failed; empty for one that succeeded."""
    environment = {**os.environ, **variables}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    return f"exit code {done.returncode}\n{done.stdout}{done.stderr}" if done.returncode else ""


def prepared(name: str, here: Path = HERE) -> tuple[Path, str]:
    """The folder of a client's programs and what failed while it was made; made again only if a list has changed."""
    lists = [path for path in (here / name / file for file in LISTS) if path.is_file()]
    if not lists:
        return Path(sys.executable).parent, ""
    directory, wanted = ENVIRONMENTS / name, "".join(path.read_text() for path in lists)
    installed = directory / "installed.txt"
    if installed.is_file() and installed.read_text() == wanted:
        return directory / "bin", ""
    if (python := python_for(here / name)) is None:
        return directory / "bin", MISSING
    if failure := run(python, "-m", "venv", "--clear", "--without-pip", directory, directory=here / name):
        return directory / "bin", failure
    for path in lists[1:]:
        shutil.copy(path, directory)
    failure = install(directory, lists[0])
    if not failure:
        installed.write_text(wanted)
    return directory / "bin", failure


def python_for(client: Path) -> str | None:
    """The first Python on this machine of a version that the client needs, ours if it does not say; perhaps none."""
    file = client / VERSIONS
    if not file.is_file():
        return sys.executable
    named = [f"python{version}" for version in file.read_text().split()]
    return next((name for name in named if which(name) and not run(name, "--version", directory=client)), None)


def install(directory: Path, requirements: Path) -> str:
    """What failed while the packages were installed: Python's, then Node's."""
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", directory / "bin" / "python", "--quiet"]
    options = ["--disable-pip-version-check", "--no-compile", *shlex.split(os.environ.get("PIP_ARGS", ""))]
    failure = run(*pip, "install", *options, "pytest", "-r", requirements)
    if failure or not (directory / "package.json").is_file():
        return failure
    command = "ci" if (directory / "package-lock.json").is_file() else "install"
    return run(directory / "bin" / "npm", command, "--ignore-scripts", "--no-audit", "--no-fund", directory=directory)


def tested(name: str, programs: Path, variables: Mapping[str, str], here: Path) -> str:
    """What the folder's tests print if one fails."""
    if any((here / name).glob("test_*.py")):
        return run(programs / "python", "-m", "pytest", "-c", HERE / "pytest.ini", here / name, variables=variables)
    directory = programs.parent
    scripts = [Path(shutil.copy(path, directory)) for path in (HERE / name).glob("*.js")]  # Node looks for modules here
    tests = [path for path in scripts if path.name.startswith("test_")]
    return run(programs / "node", "--test", "--test-concurrency=1", *tests, directory=directory, variables=variables)


@contextmanager
def hearing(folder: Path) -> Iterator[dict[str, str]]:
    """A server with a model that hears, until the block ends: the variables by which tests find it and a recording.

    It is no second model of the first server: clients list that one's models.
    """
    recording = folder / "speech.wav"
    recording.write_bytes(saved(speech(2.0)))
    with serving(str(save_native(folder / "hearing"))) as server:
        yield {"NORIA_HEARING_URL": server.url, "NORIA_RECORDING": str(recording)}


@contextmanager
def served() -> Iterator[dict[str, str]]:
    """Both servers until the block ends, as the variables that tests get."""
    with TemporaryDirectory() as name, serving(paced=True) as server, hearing(Path(name)) as variables:
        files = extracted(resolve(MODEL), Path(name))
        yield {"NORIA_URL": server.url, "NORIA_MODEL_DIR": str(files), PACE: str(server.pace), **variables}


def main() -> int:
    names = sys.argv[1:] or NAMES
    failed = []
    with ThreadPoolExecutor(INSTALLS) as pool, served() as variables:
        for name, (programs, failure) in zip(names, pool.map(prepared, names), strict=True):
            started = time.monotonic()
            failure = failure or tested(name, programs, variables, HERE)
            print(f"{name}: {failure or f'passes in {time.monotonic() - started:.0f} s'}", flush=True)
            failed += [name] if failure else []
    print(f"{len(names) - len(failed)} of {len(names)} folders of clients pass", *failed, sep="\nfailed: ")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
