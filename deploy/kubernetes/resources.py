"""The resources of a pod with one rank, from the memory plan of its model. The argument is the number of processors.

noria plan MODEL --device cpu --cache-memory 1GiB --json | python3 deploy/kubernetes/resources.py 2

It prints JSON, which is YAML too. It needs nothing but Python.
"""

import json
import math
import sys
from typing import Any

MIB = 2**20
STEP = 256
"""Requests are rounded up to this many MiB."""
PROCESSES = 60 + 105 + 160 + 120 + 16 * 8
"""MiB of the engine, the service, the zygote, grammars, and large bodies with --max-body 8MiB: the table "Sizing" of
docs/operations.md."""
CUDA = 7424
"""MiB of host memory for CUDA's libraries and driver, and for weights on their way to the GPU: an estimate that nobody
has measured. Together with the rest it is 8 GiB."""


def resources(plan: dict[str, Any], n_processors: int) -> dict[str, dict[str, str]]:
    """`requests` and `limits`. Limits are equal: Noria reads them and takes no more, so that nobody ends it for memory.

    `plan` is what `noria plan --json` prints. Raises ValueError if the plan says that the model does not fit.
    """
    if not plan["possible"]:
        raise ValueError("the plan says that nothing fits; enough would be " + ", or ".join(plan["remedies"]))
    on_gpu = plan["device"] == "cuda"
    model = CUDA * MIB if on_gpu else plan["weights"] + plan["media"] + plan["step"] + plan["cache"]
    memory = STEP * math.ceil((model / MIB + PROCESSES) / STEP)
    requests = {"cpu": str(n_processors), "memory": f"{memory}Mi"}
    return {"requests": requests, "limits": requests | ({"nvidia.com/gpu": "1"} if on_gpu else {})}


if __name__ == "__main__":
    print(json.dumps({"resources": resources(json.load(sys.stdin), int(sys.argv[1]))}, indent=2))
