"""The GPU that a model would run on, as NVIDIA's driver and its own tool report it. PyTorch would take seconds."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Literal

SECONDS = 10.0
LOADED = Path("/proc/driver/nvidia/version")


def hidden() -> bool:
    """Return whether CUDA_VISIBLE_DEVICES hides every GPU from this process."""
    return _first() in ("", "-1")


def driver() -> str | None:
    """Return the version of NVIDIA's driver, such as "580.65.06", also if PyTorch cannot use it; None without one."""
    text = LOADED.read_text() if LOADED.exists() else _ask("driver_version") or ""
    found = re.search(r"\b\d{3,}(\.\d+)+", text)  # after "NVIDIA UNIX x86_64 Kernel Module"
    return found[0] if found else None


def gpu_memory(part: Literal["total", "free"] = "total") -> int | None:
    """Return the bytes of the first GPU of this process; None without a GPU or nvidia-smi, or if it `is_divided`."""
    found = None if hidden() else _ask(f"memory.{part},mig.mode.current")
    mebibytes, _, mode = (found or "").partition(",")
    return int(mebibytes) * 2**20 if mebibytes.strip().isdecimal() and mode.strip() != "Enabled" else None


def is_divided() -> bool:
    """Return whether MIG divides the first GPU: nvidia-smi then does not tell the memory of a part."""
    return _first().startswith("MIG-") or (_ask("mig.mode.current") or "").strip() == "Enabled"


def _first() -> str:
    """Return the number or the UUID of the first GPU that this process may use; "" and "-1" mean none."""
    return os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()


def _ask(fact: str) -> str | None:
    """Ask nvidia-smi about the first GPU; None without it, or if it fails."""
    if (tool := shutil.which("nvidia-smi")) is None:
        return None
    query = [tool, f"--query-gpu={fact}", "--format=csv,noheader,nounits", *([] if hidden() else [f"--id={_first()}"])]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=SECONDS).stdout
    except (OSError, subprocess.SubprocessError):
        return None
