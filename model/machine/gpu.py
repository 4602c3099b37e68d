"""The memory of the GPU that a model would run on, as the driver's own tool reports it. No torch."""

import os
import shutil
import subprocess

SECONDS = 10.0


def gpu_memory() -> int | None:
    """Bytes of the first GPU that this process may use; None without a GPU, or without nvidia-smi."""
    tool, gpu = shutil.which("nvidia-smi"), os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if tool is None or gpu in ("", "-1"):
        return None
    query = [tool, "--query-gpu=memory.total", "--format=csv,noheader,nounits", f"--id={gpu}"]
    try:
        mebibytes = subprocess.run(query, capture_output=True, text=True, check=True, timeout=SECONDS).stdout
        return int(mebibytes) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
