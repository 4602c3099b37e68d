"""The memory of the GPU that a model would run on, as the driver's own tool reports it. PyTorch would take seconds."""

import os
import shutil
import subprocess
from typing import Literal

SECONDS = 10.0


def gpu_memory(part: Literal["total", "free"] = "total") -> int | None:
    """Bytes of the first GPU that this process may use; None without a GPU, or without nvidia-smi."""
    tool, gpu = shutil.which("nvidia-smi"), os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if tool is None or gpu in ("", "-1"):
        return None
    query = [tool, f"--query-gpu=memory.{part}", "--format=csv,noheader,nounits", f"--id={gpu}"]
    try:
        mebibytes = subprocess.run(query, capture_output=True, text=True, check=True, timeout=SECONDS).stdout
        return int(mebibytes) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
