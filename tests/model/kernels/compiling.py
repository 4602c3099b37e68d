"""Compiles Triton kernels for absent GPUs, without TRITON_INTERPRET.

What is compiled is what is launched: each of LAUNCHES in a module of `launches` calls our code with tensors in the
memory of the CPU, and a launch compiles for the pretended device and computes nothing.

    python -m tests.model.kernels.compiling attention ...     prints a JSON list of `Compiled` of these modules
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
INSTRUCTIONS = (*("mma.sync", "wgmma.mma_async", "tcgen05.mma", "cp.async.cg", "cp.async.bulk", "ldmatrix"),)
"""PTX instructions that `Compiled` counts."""


@dataclass(frozen=True)
class Compiled:
    """One kernel, or the compiler's error.

    It has the constants of the launch, bytes of shared memory, and the number of warps and of each of INSTRUCTIONS in
    its PTX. `pending` has, for each wait for asynchronous copies inside a loop of its TTGIR, the number of groups of
    copies that may still be under way: with 0 the loop waits for what it has just requested. `registers` are those of a
    thread, `stack` its bytes in memory: those of registers that did not fit, and of calls.
    """

    launch: str
    capability: int
    kernel: str = ""
    constants: dict[str, str] | None = None
    shared: int = 0
    warps: int = 0
    instructions: dict[str, int] | None = None
    pending: Sequence[int] = ()
    registers: int = 0
    stack: int = 0
    error: str = ""

    @property
    def tensor_cores(self) -> bool:
        return any((self.instructions or {}).get(name) for name in INSTRUCTIONS[:3])


class Driver:
    """The driver of an absent GPU. Its device number is its capability: each GPU then has its own cache."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_for(
    name: str, launch: Callable[[], None], capability: int, look: Callable[[str, Any], None] = lambda kernel, made: None
) -> list[Compiled]:
    """What a launch compiles. `look` gets the name of each kernel, and what Triton has made of it."""
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    found = []

    def kernel(function: Any, grid: object) -> Callable[..., None]:
        def call(*args: Any, **options: Any) -> None:
            made = function.run(*args, grid=grid, warmup=True, **options)
            found.append(_facts(name, capability, function, made))
            look(function.__name__, made)

        return call

    driver.set_active(Driver(capability))
    JITFunction.__getitem__ = kernel
    try:
        launch()
    except Exception as error:
        found.append(Compiled(name, capability, error=f"{type(error).__name__}: {error}"))
    return found


def _facts(launch: str, capability: int, function: Any, made: Any) -> Compiled:
    ptx, names = made.asm["ptx"], function.arg_names
    constants = {names[at[0]]: str(value) for at, value in made.src.constants.items() if len(at) == 1}
    return Compiled(
        *(launch, capability, function.__name__, constants, made.metadata.shared, made.metadata.num_warps),
        {name: ptx.count(name) for name in INSTRUCTIONS},
        pending_copies(made.asm["ttgir"]),
        *usage(made.asm["cubin"]),
    )


def usage(cubin: bytes) -> tuple[int, int]:
    """`Compiled.registers` and `Compiled.stack`."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack = re.findall(r"REG:(\d+) STACK:(\d+)", report)[0]
    return int(registers), int(stack)


def pending_copies(ttgir: str) -> tuple[int, ...]:
    """`Compiled.pending`. A loop's body has a greater indent than its first line and its last, "}" or "} {...}"."""
    found, loops = [], list[int]()
    for line in ttgir.splitlines():
        indent = len(line) - len(line.lstrip())
        while loops and indent <= loops[-1]:
            loops.pop()
        if re.search(r"\bscf\.(for|while)\b", line):
            loops.append(indent)
        if loops and (wait := re.search(r"async_wait\b.*\bnum = (\d+)", line)):
            found.append(int(wait[1]))
    return tuple(found)


def compiled(*modules: str) -> list[Compiled]:
    """All kernels of these modules of `launches`, from a process that does not interpret."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "tests.model.kernels.compiling", *modules]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [Compiled(**one) for one in json.loads(done.stdout.splitlines()[-1])]


def launches(module: str) -> dict[str, tuple[Callable[[], None], tuple[int, ...]]]:
    found: dict[str, tuple[Callable[[], None], tuple[int, ...]]]
    found = import_module(f"tests.model.kernels.launches.{module}").LAUNCHES
    return found


def main() -> None:
    found = [
        one
        for module in sys.argv[1:]
        for name, (launch, capabilities) in launches(module).items()
        for capability in capabilities
        for one in compile_for(name, launch, capability)
    ]
    print(json.dumps([asdict(one) for one in found]))


if __name__ == "__main__":
    main()
