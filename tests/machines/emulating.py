"""A C compiler for other processors, as `CC="python emulating.py KIND"`: it calls gcc or clang with other flags.

KIND amx: AVX-512 and AMX in instructions of AVX2 (avx512.h, EMULATED_TILES), which the processor then claims to have.
KIND older: it does not know AVX-512.
KIND sanitized: as older, with AddressSanitizer, which also watches the space between arrays of scratch memory (pool.h).
"""

import subprocess
import sys
from pathlib import Path

TILES = Path(__file__).parents[1] / "model/kernels/tiles.h"
EMULATED = {
    "-mavx512vnni": ("-include", str(Path(__file__).parent / "avx512.h"), "-DEMULATED_VNNI"),
    "-mavx512bf16": ("-DEMULATED_BF16",),
    "-mamx-int8": (f'-DEMULATED_TILES="{TILES}"',),
}
BEYOND_AVX2 = ("-mavx512", "-mamx", "-mprefer-vector-width=512")
QUICK = ("-O1", "-fno-strict-aliasing")
"""The same bits after a fraction of the time to compile."""


OWN = {"amx": ("-DFORCED_LEVEL=4",), "sanitized": ("-fsanitize=address", "-DSANITIZED")}
"""Flags that a kind adds to every call."""


def main() -> int:
    kind, *words = sys.argv[1:]
    if kind in ("older", "sanitized") and any(word.startswith("-mavx512") for word in words):
        return 1
    flags = list(OWN.get(kind, ()))
    for word in words:
        flags += EMULATED.get(word, ()) if word.startswith(BEYOND_AVX2) else [word]
    return subprocess.run(["cc", *flags, *QUICK]).returncode


if __name__ == "__main__":
    sys.exit(main())
