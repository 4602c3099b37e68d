"""The GPU that a model would run on, as NVIDIA's driver and its own tool report it. PyTorch would take seconds."""

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Literal, NamedTuple

SECONDS = 10.0
LOADED = Path("/proc/driver/nvidia/version")
DEVICES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""A file of every GPU's driver: of Linux, of Windows' subsystem for Linux."""
LEAST_DRIVER = {11: 450, 12: 525, 13: 580}
"""The oldest branch of the driver that serves a major version of CUDA.

docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html
"""


class Driver(NamedTuple):
    """NVIDIA's driver: its version, such as "580.65.06", and the newest CUDA it serves; None if its library is missing.

    `reachable` says whether this process finds a file through which programs reach a GPU.
    """

    version: str
    cuda: tuple[int, int] | None
    reachable: bool

    def serves(self, major: int) -> bool:
        """Whether programs for this major version of CUDA run."""
        if self.cuda is not None:
            return self.cuda[0] >= major
        return int(self.version.split(".")[0]) >= LEAST_DRIVER.get(major, 0)

    def __str__(self) -> str:
        return self.version if self.cuda is None else f"{self.version} (CUDA {self.cuda[0]}.{self.cuda[1]})"


def hidden() -> bool:
    """Whether CUDA_VISIBLE_DEVICES hides every GPU from this process."""
    return _first() in ("", "-1")


def driver() -> Driver | None:
    """The driver of this machine, also if PyTorch cannot use it; None without one."""
    text = LOADED.read_text() if LOADED.exists() else _ask("driver_version") or ""
    found = re.search(r"\b\d{3,}(\.\d+)+", text)  # after "NVIDIA UNIX x86_64 Kernel Module"
    return Driver(found[0], _cuda(), any(map(Path.exists, DEVICES))) if found else None


def gpu_memory(part: Literal["total", "free"] = "total") -> int | None:
    """Bytes of the first GPU that this process may use; None without a GPU, or without nvidia-smi."""
    mebibytes = None if hidden() else _ask(f"memory.{part}")
    return int(mebibytes) * 2**20 if mebibytes and mebibytes.strip().isdecimal() else None


def _first() -> str:
    """The number or the UUID of the first GPU that this process may use; "" and "-1" mean none."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()


def _ask(fact: str) -> str | None:
    """What nvidia-smi says of the first GPU; None without it, or if it fails."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return None
    query = [tool, f"--query-gpu={fact}", "--format=csv,noheader,nounits", *([] if hidden() else [f"--id={_first()}"])]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=SECONDS).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def _cuda() -> tuple[int, int] | None:
    """The newest version of CUDA that the driver's library serves; None if it does not load."""
    number = ctypes.c_int()  # 12040 is 12.4
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return None if failed else (number.value // 1000, number.value % 1000 // 10)
