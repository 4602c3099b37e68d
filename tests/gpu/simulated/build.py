"""Builds the libraries that PyTorch's CUDA build links, for a machine without a GPU.

    python -m tests.gpu.simulated.build TORCH_LIB CUDA_INCLUDE TARGET

The runtime (libcudart) and the driver (libcuda) are those of `cuda/`. The other libraries answer every call with
success; cuBLAS reports its kernels to the runtime. What is linked is read from PyTorch's own libraries.
"""

import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

SOURCES = Path(__file__).parent / "cuda"
RUNTIME, DRIVER = "libcudart.so.13", "libcuda.so.1"
LIBRARIES = {
    "cublasLt": "libcublasLt",
    "cublas": "libcublas",
    "cufft": "libcufft",
    "cusparseLt": "libcusparseLt",
    "cusparse": "libcusparse",
    "cusolver": "libcusolver",
    "curand": "libcurand",
    "cudnn": "libcudnn",
    "nccl": "libnccl",
    "cuFile": "libcufile",
    "cupti": "libcupti",
    "nvrtc": "libnvrtc",
    "nvshmem": "libnvshmem_host",
}
"""What the names of a library's functions begin with: the longer of two comes first."""
KERNELS = re.compile(r"gem[mv]|dot|axpy|scal|trsm", re.IGNORECASE)
"""Functions of cuBLAS that launch a kernel."""
REFUSED = (
    "cuTensorMapEncodeTiled",
    "cuTensorMapEncodeIm2col",
    "cuMemGetAddressRange",
    "cuMemAddressReserve",
    "cuMemRelease",
    "cuMemMap",
    "cuMemAddressFree",
    "cuMemSetAccess",
    "cuMemUnmap",
    "cuMemCreate",
    "cuMemGetAllocationGranularity",
    "cuMemExportToShareableHandle",
    "cuMemImportFromShareableHandle",
    "cuMemRetainAllocationHandle",
    "cuMemGetAllocationPropertiesFromHandle",
    "cuMemsetD32Async",
    "cuStreamWriteValue32",
    "cuModuleLoad",
    "cuModuleLoadDataEx",
    "cuLinkAddData_v2",
    "cuLinkComplete",
    "cuLinkCreate_v2",
    "cuLaunchCooperativeKernel",
    "cuOccupancyMaxActiveBlocksPerMultiprocessor",
)
"""Functions of the driver that are not simulated."""
NOT_SUPPORTED = 801
MACROS = """#pragma once
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __host__
#define __device__
#define __builtin_align__(n) __attribute__((aligned(n)))
#define __align__(n) __attribute__((aligned(n)))
#define CUDARTAPI
#define CUDAAPI
#define CUDARTAPI_CDECL
#define __location__(a)
#define __specialization_static static
#define __CUDACC_VER_MAJOR__ 13
"""
"""crt/host_defines.h, which nvcc's package has."""
OWN = {
    "cublasCreate_v2": "(void **h) { *h = calloc(1, 64); return 0; }",
    "cublasSetStream_v2": "(void **h, void *stream) { h[0] = stream; return 0; }",
    "cublasGetMathMode": "(void *h, int *mode) { *mode = 0; return 0; }",
    "cublasGetPointerMode_v2": "(void *h, int *mode) { *mode = 0; return 0; }",
    "cublasLtGetVersion": "() { return 130000; }",
    "cublasLtMatmulAlgoGetHeuristic": "(void *h, void *d, void *a, void *b, void *c, void *e, void *p, int n, "
    "void *result, int *n_found) { memset(result, 0, 96); *n_found = 1; return 0; }",
    "cublasLtMatmul": "(void *h, void *d, void *al, void *a, void *la, void *b, void *lb, void *be, void *c, void *lc, "
    'void *y, void *ly, void *algo, void *w, size_t n, void *stream) { return sim_kernel("cublasLtMatmul", stream); }',
    "cudnnGetVersion": "() { return 92000; }",
    "cudnnGetCudartVersion": "() { return 13000; }",
    "cudnnCreate": "(void **h) { *h = calloc(1, 64); return 0; }",
    "ncclGetVersion": "(int *version) { *version = 22907; return 0; }",
}
"""Functions whose results PyTorch reads."""


class Linked(NamedTuple):
    """The functions that PyTorch's libraries do not define, with the version of each, and the libraries they name."""

    functions: dict[str, str]
    libraries: list[str]


def linked(folder: Path) -> Linked:
    functions, libraries = dict[str, str](), dict[str, None]()
    for library in sorted(folder.glob("*.so")):
        for line in output("nm", "-D", "--undefined-only", str(library)).splitlines():
            name, _, version = line.split()[-1].partition("@")
            functions[name] = version.lstrip("@")
        needed = re.findall(r"NEEDED\s+(\S+)", output("objdump", "-p", str(library)))
        libraries |= dict.fromkeys(needed)
    return Linked(functions, list(libraries))


def output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def library_of(function: str) -> str | None:
    return next((library for prefix, library in LIBRARIES.items() if function.startswith(prefix)), None)


def stub(library: str, name: str) -> str:
    """The C code of a function."""
    if name in OWN:
        kind = "size_t" if name.startswith(("cudnnGet", "cublasLtGet")) else "int"
        return f"{kind} {name}{OWN[name]}"
    if library == "libcublas" and KERNELS.search(name):
        return f'int {name}(void **h) {{ return sim_kernel("{name}", h[0]); }}'
    if name.endswith("ErrorString"):
        return f'const char *{name}() {{ return "{name}"; }}'
    return answering(name, 0)


def answering(name: str, status: int) -> str:
    return f"int {name}() {{ return {status}; }}"


def build_stub(name: str, found: Linked, target: Path) -> None:
    """Build a library that answers, for instance libcublas.so.13."""
    library = name.split(".so")[0]
    functions = sorted(function for function in found.functions if library_of(function) == library)
    head = "#include <stdlib.h>\n#include <string.h>\nint sim_kernel(const char *, void *);"
    source = written(target / f"{library}.c", [head, *(stub(library, function) for function in functions)])
    versions = {found.functions[function] for function in functions} - {""}
    shared([source], target / name, versions)


def build_cuda(found: Linked, include: Path, target: Path) -> None:
    """Build the runtime and the driver. Functions that they lack say that they are not supported."""
    written(target / "include/crt/host_defines.h", [MACROS])
    flags = ["-std=c++17", "-O1", f"-I{target / 'include'}", f"-I{include}"]
    parts = sorted(path for path in SOURCES.glob("*.cpp") if path.stem != "driver")
    text = "\n".join(path.read_text() for path in parts)
    cuda = [name for name in found.functions if re.match(r"cuda[A-Z]|__cuda", name)]
    missing = [name for name in cuda if not re.search(rf"\b{name}\(", text)]
    more = compiled_c(target / "more.c", missing)
    shared([*parts, more], target / RUNTIME, ["libcudart.so.13"], *flags, "-ldl", "-lpthread", compiler="g++")
    refused = compiled_c(target / "refused.c", REFUSED)
    driver = [SOURCES / "driver.cpp", refused]
    shared(driver, target / DRIVER, [], *flags, f"-L{target}", f"-l:{RUNTIME}", compiler="g++")


def compiled_c(source: Path, refused: Iterable[str]) -> Path:
    """An object file with functions that are not supported: C++ has declarations of them with other types."""
    written(source, (answering(name, NOT_SUPPORTED) for name in refused))
    run("gcc", "-w", "-c", "-fPIC", "-o", source.with_suffix(".o"), source)
    return source.with_suffix(".o")


def written(path: Path, lines: Iterable[str]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def shared(sources: Sequence[Path], target: Path, versions: Iterable[str], *flags: str, compiler: str = "gcc") -> None:
    """Build a shared library whose functions have all these versions."""
    script = written(
        target.with_suffix(".map"), [f"{version} {{ global: *; }};" for version in versions] or ["{ global: *; };"]
    )
    linker = [f"-Wl,-soname,{target.name}", f"-Wl,--version-script={script}"]
    run(compiler, "-w", "-shared", "-fPIC", "-o", target, *sources, *linker, *flags)


def run(*command: str | Path) -> None:
    subprocess.run(command, check=True)


def build(torch_libraries: Path, include: Path, target: Path) -> None:
    target.mkdir(parents=True, exist_ok=True)
    found = linked(torch_libraries)
    for name in found.libraries:
        if name.split(".so")[0] in LIBRARIES.values():
            build_stub(name, found, target)
    build_cuda(found, include, target)


if __name__ == "__main__":
    build(*map(Path, sys.argv[1:4]))
