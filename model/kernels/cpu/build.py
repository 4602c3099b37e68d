"""Compiles the kernels into one library: `python -m model.kernels.cpu.build`. Standard library only.

The system's C compiler is used, else the one in the `ziglang` wheel, if it is installed.
"""

import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HERE = Path(__file__).parent
SOURCES = (
    *("linear/linear.c", "attention/attention.c", "sample.c", "network.c", "step/step.c"),
    *("step/latent.c", "linear/pack.c", "linear/experts.c"),
)
INCLUDE = f"-I{HERE}"
FLAGS = ("-std=gnu11", "-O3", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fwrapv", "-Wall", "-Wno-psabi")
_AVX2 = "-mavx2 -mfma -mf16c -mbmi2"
_AVX512 = f"{_AVX2} -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mprefer-vector-width=512"
VARIANTS = {
    "x86_64": {
        "amx": f"{_AVX512} -mavx512bf16 -mamx-tile -mamx-int8 -mamx-bf16",
        "avx512bf16": f"{_AVX512} -mavx512bf16",
        "avx512vnni": _AVX512,
        "avx2": _AVX2,
        "baseline": "",
    },
    "aarch64": {
        "neon-i8mm": "-march=armv8.2-a+dotprod+i8mm",
        "neon-dotprod": "-march=armv8.2-a+dotprod",
        "baseline": "",
    },
}
"""Compiler flags of the variants of each architecture, the best variant first."""
ARCHITECTURES = {"AMD64": "x86_64", "arm64": "aarch64"}
"""Other names of them."""
PROBES = {
    "amx": "tdpbf16ps %tmm2, %tmm1, %tmm0",
    "avx512bf16": "vdpbf16ps %zmm2, %zmm1, %zmm0",
    "avx512vnni": "vpdpbusd %zmm2, %zmm1, %zmm0",
    "avx2": "vfmadd231ps %ymm2, %ymm1, %ymm0",
    "neon-i8mm": "usmmla v0.4s, v1.16b, v2.16b",
    "neon-dotprod": "sdot v0.4s, v1.16b, v2.16b",
}
"""An instruction of each variant that an older compiler, or the assembler behind it, does not know."""


def library() -> Path:
    """Return the path of the compiled library, whether or not it exists."""
    return HERE / "_native.so"


def fingerprint() -> str:
    """Hash the sources and this file. A library that was built from other sources must not be called."""
    files = sorted([*HERE.rglob("*.[ch]"), Path(__file__)])
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:16]


def compiler() -> list[str] | None:
    """Return the command of a C compiler; None if there is no compiler."""
    for command in map(str.split, (os.environ.get("CC", ""), "cc", "gcc", "clang")):
        if command and shutil.which(command[0]):
            return command
    # By default zig compiles for the machine on which it runs.
    zig = [sys.executable, "-m", "ziglang", "cc", "-mcpu=baseline"]
    return zig if importlib.util.find_spec("ziglang") else None


def variants(machine: str = platform.machine()) -> dict[str, list[str]]:
    """Return the compiler flags of each variant of the kernels on an architecture, the best variant first."""
    known = VARIANTS.get(ARCHITECTURES.get(machine, machine), {"baseline": ""})
    return {name: flags.split() for name, flags in known.items()}


def suffix(variant: str) -> str:
    """Return the end of the names of a variant's functions in C."""
    return variant.replace("-", "_")


def build(target: Path, told: Callable[[str], object] = lambda line: None) -> tuple[str, ...]:
    """Compile into `target`, unless it has these sources and variants; returns its variants.

    The processor's own is the first to compile or to fail, and `told` gets a line for each. Raises RuntimeError with
    the compiler's message.
    """
    command = compiler()
    if command is None:
        raise RuntimeError("no C compiler found; install gcc or clang, or `pip install ziglang`")
    general = [*command, *FLAGS, INCLUDE]
    with tempfile.TemporaryDirectory() as folder:
        known = {
            name: flags for name, flags in _targeted(command).items() if _compiles(command, name, flags, Path(folder))
        }
        if _is_current(target, known):
            return tuple(known)
        pool = f"{folder}/pool.o"
        _run([*general, f'-DFINGERPRINT="{fingerprint()}"', "-c", str(HERE / "pool.c"), "-o", pool])
        own = next(filter(known.__contains__, _runnable(command, pool)), None)
        order = sorted(known, key=lambda name: name != own)
        jobs = {}
        for name in order:
            chosen = [*general, *known[name], f"-DVARIANT={suffix(name)}"]
            for source in SOURCES:
                output = f"{folder}/{name}-{Path(source).stem}.o"
                jobs[output] = [*chosen, "-c", str(HERE / source), "-o", output]
        # As many at once as there are processors: each compiler takes some 100 MiB of memory.
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            for n, _ in enumerate(threads.map(_run, jobs.values()), 1):
                if n % len(SOURCES) == 0:
                    told(f"{order[n // len(SOURCES) - 1]} is compiled, {n // len(SOURCES)} of {len(order)}")
        linked = target.with_suffix(f".{os.getpid()}.tmp")
        _run([*command, "-shared", pool, *jobs, "-o", str(linked), "-lpthread", "-lm"])
        linked.replace(target)  # at once: a process that has the old one open keeps it
    return tuple(known)


def _targeted(command: Sequence[str]) -> dict[str, list[str]]:
    """Return the variants of the architecture for which a compiler compiles, with its flags."""
    triple = subprocess.run([*command, "-dumpmachine"], stdout=subprocess.PIPE, text=True).stdout
    known = variants(triple.split("-")[0] or platform.machine())
    if "ziglang" not in command:
        return known
    # It has no -march, and takes extensions after the name of a processor.
    return {name: [flag.replace("-march=armv8.2-a", "-mcpu=generic") for flag in known[name]] for name in known}


def _compiles(command: Sequence[str], name: str, flags: Sequence[str], folder: Path) -> bool:
    """Return whether the compiler knows a variant's instruction. The baseline has none: all compilers know it."""
    if name not in PROBES:
        return True
    source = folder / f"{name}.c"
    source.write_text(f'void probe(void) {{ __asm__("{PROBES[name]}"); }}\n')
    job = [*command, *flags, "-c", str(source), "-o", str(source.with_suffix(".o"))]
    return subprocess.run(job, stdin=subprocess.DEVNULL, capture_output=True).returncode == 0


def _is_current(target: Path, known: Collection[str]) -> bool:
    """Return whether a library was built from these sources, with all these variants."""
    words = (fingerprint(), *(f"linear_{suffix(name)}\0" for name in known))
    content = target.read_bytes() if target.exists() else b""
    return all(word.encode() in content for word in words)


def _runnable(command: Sequence[str], pool: str) -> Sequence[str]:
    """Return the variants that this processor runs, the best first; none if it does not run the compiler's objects."""
    try:
        _run([*command, "-shared", pool, "-o", f"{pool}.so", "-lpthread"])
        # In another process, which the library may end.
        code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).noria_level())"
        told = subprocess.run([sys.executable, "-c", code, f"{pool}.so"], capture_output=True, check=True)
        return [*variants()][-1 - int(told.stdout) :]
    except (RuntimeError, subprocess.CalledProcessError):
        return ()


def _run(command: Sequence[str]) -> None:
    process = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if process.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))[:200]}:\n{process.stdout}")


def main() -> None:
    """Build, and print the names of the variants. Exits with the reason if the library cannot be built."""
    try:
        print(*build(library(), told=lambda line: print(f"noria: kernels: {line}", file=sys.stderr)))
    except (RuntimeError, OSError) as error:
        sys.exit(f"noria: {error}")


if __name__ == "__main__":
    main()
