"""Generated requests (schemathesis) and generated files: headers of GGUF and safetensors files."""

import os
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.drill.row import LoneRow, NotPossible, Promise, Row, check
from tests.drill.stage import Stage

TESTS = Path(__file__).parents[2]
PYTHON = TESTS.parent / ".clients" / "schemathesis" / "bin" / "python"
REQUESTS_SECONDS = 60
FILES_SECONDS = 20


def schemathesis(stage: Stage) -> str:
    """A minute of tests/clients/schemathesis."""
    if not PYTHON.exists():
        raise NotPossible("not installed: make test-clients CLIENTS=schemathesis")
    clients = TESTS / "clients"
    command: list[str | Path] = [
        PYTHON,
        "-m",
        "pytest",
        "-x",
        "-c",
        clients / "pytest.ini",
        clients / "schemathesis",
    ]
    code, output = run(command, REQUESTS_SECONDS, NORIA_URL=stage.target.url)
    check(code in (0, -signal.SIGTERM), output[-400:])
    return "no failure" if code == 0 else f"no failure in {REQUESTS_SECONDS} s"


def files(kind: str) -> str:
    """Damaged files, loaded in a child (`tests/drill/attacks/damage.py`)."""
    command: list[str | Path] = [sys.executable, "-m", "tests.drill.attacks.damage", kind, str(FILES_SECONDS)]
    code, output = run(command, 4 * FILES_SECONDS)
    lines = output.strip().splitlines() or [""]
    check(code == 0, f"exit code {code}: {' '.join(lines[-8:])[-600:]}")
    return lines[-1]


def run(command: list[str | Path], seconds: float, **variables: str) -> tuple[int, str]:
    """Exit code and output of a command, which gets SIGTERM after some seconds."""
    with tempfile.TemporaryFile("w+") as output:
        environment = os.environ | {"OMP_NUM_THREADS": "1"} | variables
        child = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=TESTS.parent, start_new_session=True
        )
        try:
            code = child.wait(seconds)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGTERM)
            code = child.wait()
        output.seek(0)
        return code, output.read()


OWN = "each one loads, or is refused in one line; no crash, no hang"
ROWS = (
    Row("schemathesis for a minute", Promise("no 5xx, answers as the OpenAPI document says"), schemathesis),
    LoneRow("GGUF files with damaged headers", OWN, partial(files, "gguf")),
    LoneRow("safetensors files with damaged headers", OWN, partial(files, "safetensors")),
)
