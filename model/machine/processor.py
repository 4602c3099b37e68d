"""Which processor this is, as far as the speed of a kernel depends on it, and its number formats. No torch."""

import hashlib
import platform
from collections.abc import Iterator
from pathlib import Path

from model.machine.host import text

NAMED = ("vendor_id", "model name", "cpu family", "model", "stepping")
NAMED_ARM = ("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision")
INSTRUCTIONS = ("flags", "Features")
"""Fields of /proc/cpuinfo."""
FORMAT_FLAGS = {
    "bfloat16": {"avx512_bf16", "amx_bf16", "bf16"},
    "float16": {"avx512_fp16", "amx_fp16", "asimdhp"},
}
"""Instruction sets (x86 and ARM) of processors that compute natively in a format."""


def processor(root: Path = Path("/")) -> dict[str, str]:
    """Names and numbers of the first processor, a hash of its instruction sets, and the sizes of its caches."""
    fields = dict(_fields(root / "proc/cpuinfo"))
    sets = " ".join(fields.get(name, "") for name in INSTRUCTIONS)
    return {
        "machine": platform.machine(),
        **{name: fields[name] for name in (*NAMED, *NAMED_ARM) if name in fields},
        "instructions": hashlib.sha256(sets.encode()).hexdigest()[:16],
        **dict(_caches(root / "sys/devices/system/cpu/cpu0/cache")),
    }


def native_formats(root: Path = Path("/")) -> frozenset[str]:
    """The number formats in which the processor computes natively."""
    fields = dict(_fields(root / "proc/cpuinfo"))
    flags = {flag for name in INSTRUCTIONS for flag in fields.get(name, "").split()}
    return frozenset({"float32", *(name for name, needed in FORMAT_FLAGS.items() if needed & flags)})


def _fields(path: Path) -> Iterator[tuple[str, str]]:
    """The first paragraph: the system takes long to tell of many processors."""
    try:
        with path.open() as lines:
            for line in lines:
                if not line.strip():
                    return
                name, _, value = line.partition(":")
                yield name.strip(), value.strip()
    except OSError:
        return


def _caches(folder: Path) -> Iterator[tuple[str, str]]:
    for index in sorted(folder.glob("index*")):
        yield f"L{text(index / 'level')} {text(index / 'type')}", text(index / "size")
