"""The number formats of this processor. No torch."""

import platform
from collections.abc import Iterator
from pathlib import Path

INSTRUCTIONS = ("flags", "Features")
"""Fields of /proc/cpuinfo."""
FORMAT_FLAGS = {
    "bfloat16": {"avx512_bf16", "amx_bf16", "bf16"},
    "float16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}
"""Instruction sets (x86 and ARM) of processors that compute natively in a format."""


def native_formats(root: Path = Path("/")) -> frozenset[str]:
    """Return the number formats in which the processor computes natively."""
    fields = dict(_fields(root / "proc/cpuinfo"))
    flags = {flag for name in INSTRUCTIONS for flag in fields.get(name, "").split()}
    return frozenset({"float32", *(name for name, needed in FORMAT_FLAGS.items() if needed & flags)})


def processor_name(root: Path = Path("/")) -> str:
    """Return the processor's name, such as "AMD EPYC 7763"; its architecture where the system does not tell."""
    return dict(_fields(root / "proc/cpuinfo")).get("model name") or platform.machine()


def _fields(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the fields of the first paragraph: the system takes long to tell of many processors."""
    try:
        with path.open() as lines:
            for line in lines:
                if not line.strip():
                    return
                name, _, value = line.partition(":")
                yield name.strip(), value.strip()
    except OSError:
        return
