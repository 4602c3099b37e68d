"""What is installed: pins, the audit of them, the search for dangerous calls, and the list of packages in the image."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

pytestmark = pytest.mark.tools

ROOT = Path(__file__).parents[2]
CHECK = (ROOT / "scripts/check").read_text()
DOCKERFILE = (ROOT / "Dockerfile").read_text()
SAFE = {"name": "safe", "version": "1", "vulns": []}
UNKNOWN = {"name": "unknown", "version": "1", "skip_reason": "Dependency not found"}
BAD = {"name": "bad", "version": "2.0", "vulns": [{"id": "PYSEC-1", "fix_versions": ["2.1"], "aliases": []}]}


def audited(tmp_path: Path, script: str) -> tuple[int, str]:
    """Exit code and output of the audit where this script stands for pip-audit."""
    fake = tmp_path / "pip-audit"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    command = [sys.executable, "scripts/audit.py", str(fake)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert not done.stderr
    return done.returncode, done.stdout


def report(*packages: dict[str, object]) -> str:
    return f"echo '{json.dumps({'dependencies': packages, 'fixes': []})}'"


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        (report(SAFE), 0, "advisories for 1 of 1 packages were read"),
        (f"{report(SAFE, BAD, UNKNOWN)}; exit 1", 1, "bad 2.0 has PYSEC-1, mended in 2.1"),
        (
            f"{report(BAD | {'vulns': [{'id': 'X', 'fix_versions': []}]})}; exit 1",
            1,
            "bad 2.0 has X, mended in no version",
        ),
        (report(UNKNOWN), 0, "skipped: no advisories for any of 1 packages"),
        (
            "echo WARNING >&2; echo ERROR: no route to host >&2; exit 1",
            0,
            "skipped: .* exit code 1: ERROR: no route to",
        ),
        ("exit 3", 0, "skipped: pip-audit ends with exit code 3: no report"),
    ],
)
def test_the_audit_fails_for_a_vulnerability_alone(tmp_path: Path, script: str, code: int, words: str) -> None:
    found, output = audited(tmp_path, script)
    assert found == code
    assert re.search(rf"^audit: {words}", output, re.MULTILINE)


def test_the_audit_reads_the_pins(tmp_path: Path) -> None:
    _, output = audited(
        tmp_path, 'for flag; do case "$flag" in --requirement=*) echo "${flag#*=}" >&2;; esac; done; exit 1'
    )
    assert output.endswith(f"{ROOT / 'constraints.txt'}\n")


def test_without_the_tool_the_audit_is_skipped() -> None:
    command = [sys.executable, "scripts/audit.py", "/nowhere/pip-audit"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("audit: skipped: ")


def test_a_dangerous_call_is_found(tmp_path: Path) -> None:
    """By the same command as in the check."""
    line = next(line for line in CHECK.splitlines() if "bandit" in line)
    (tmp_path / "a.py").write_text(
        "import subprocess\n\n\ndef f(x: str) -> None:\n    subprocess.call(x, shell=True)\n"
    )
    command = line.replace("$bin", str(Path(sys.executable).parent)).replace("model service", str(tmp_path))
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, "B602" in done.stdout) == (1, True)


def test_what_the_check_runs_is_pinned() -> None:
    pins = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    dev = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["dev"]
    assert {"bandit", "pip-audit"} <= {re.split("[><=]", item)[0] for item in dev}
    assert {"bandit", "pip_audit", "cyclonedx-bom"} <= pins
    assert os.access(ROOT / "scripts/check", os.X_OK)
    assert "audit.py" in CHECK


def test_the_image_has_a_list_of_its_packages_where_the_docs_say() -> None:
    (path,) = re.findall(r"-o (/opt/noria/\S+\.cdx\.json) /opt/noria/bin/python", DOCKERFILE)
    assert path in (ROOT / "docs/security.md").read_text()
    assert path in (ROOT / "scripts/check-container").read_text()
    made, last = DOCKERFILE.index(path), DOCKERFILE.rindex("/opt/noria/bin/python install")
    assert made > last, "the list is made after the last package is installed"


def test_the_flags_in_the_threat_model_are_those_of_serve() -> None:
    from typer.main import get_command

    from service.cli import build

    serve = get_command(build(["bench"])).commands["serve"]  # type: ignore[attr-defined]
    known = {name for parameter in serve.params for name in parameter.opts}
    named = set(re.findall(r"`(--[a-z-]+)`", (ROOT / "docs/security.md").read_text()))
    assert "--max-queue-tokens" in named
    assert named <= known, named - known
