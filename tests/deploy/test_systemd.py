"""The unit of deploy/systemd: what systemd says of it, and what Noria's own command line says."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.main import get_command

from service import cli
from tests.deploy.manifests import CLOSING_SECONDS

pytestmark = pytest.mark.tools

UNIT = Path(__file__).parents[2] / "deploy/systemd/noria.service"
PROGRAM = "/opt/noria/bin/noria"
needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed (scripts/setup-proxies)"
)


def settings(name: str) -> list[str]:
    """The values of a setting, in the order of the file."""
    lines = (line.partition("=") for line in UNIT.read_text().splitlines() if not line.startswith("#"))
    return [value for key, _, value in lines if key == name]


def analyze(tool: str, *flags: str, folder: Path) -> str:
    """What a tool of systemd-analyze says of the unit, whose program is here one that this machine has."""
    copy = folder / UNIT.name
    copy.write_text(UNIT.read_text().replace(PROGRAM, "/bin/true"))
    done = subprocess.run(["systemd-analyze", tool, *flags, str(copy)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@needs_systemd
def test_systemd_knows_every_setting(tmp_path: Path) -> None:
    """`verify` only warns of what it does not know, and says nothing of a unit that is right."""
    assert analyze("verify", "--man=no", folder=tmp_path) == ""


@needs_systemd
def test_systemd_finds_little_exposed(tmp_path: Path) -> None:
    """At most 2.0 of 10, without a network that is closed."""
    analyze("security", "--offline=yes", "--threshold=20", folder=tmp_path)


def test_its_command_and_variables_are_those_of_serve() -> None:
    (command,) = settings("ExecStart")
    program, name, *arguments = shlex.split(command)
    serve = get_command(cli.build(["serve"])).commands["serve"]  # type: ignore[attr-defined]
    values = serve.make_context("serve", arguments).params
    assert (program, name) == (PROGRAM, "serve")
    assert str(values["api_key_file"]) == "${CREDENTIALS_DIRECTORY}/keys"
    assert settings("LoadCredential") == ["keys:/etc/noria/keys"]
    assert float(settings("TimeoutStopSec")[0]) > values["drain_timeout"] + CLOSING_SECONDS
    known = {parameter.envvar for parameter in serve.params} | {"HF_HOME"}
    (variables,) = settings("Environment")
    found = dict(variable.split("=") for variable in variables.split())
    assert found.keys() <= known
    (cache,) = settings("CacheDirectory")
    assert all(value.startswith(f"/var/cache/{cache}") for value in found.values())
