"""Finds machine code for 9.0 that writes a register which an unfinished `wgmma` may still read.

A wgmma runs beside the instructions after it. Its group ends with a wait; until then the registers of its first operand
must not change (PTX manual, wgmma.mma_async). Triton 3.6 to 3.8 may wait too late if the operand is in registers
(triton-lang/triton#9433): sums are then wrong, rarely and at random.
"""

import re
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

PRODUCT = re.compile(r"\b[HQI]GMMA")
"""wgmma of 16 bits, of fp8 and of integers."""
LABEL, JUMP = re.compile(r"(\.L_x_\d+):"), re.compile(r"\bBRA\b.*`\((\.L_x_\d+)\)")
WAIT = re.compile(r"WARPGROUP\.DEPBAR\.LE gsb0, (0x[0-9a-f]+)")
"""Waits until at most so many younger groups run."""
REGISTER = re.compile(r"R(\d+)(?:\.reuse)?")
PREDICATE = re.compile(r"@!?U?P\w+\s+")
READING = ("BAR", "BRX", "CALL", "JMX", "NANOSLEEP", "RET", "WARPSYNC")
"""Instructions whose first operand is read."""
OPERAND = 4
"""Registers of the first operand of a wgmma, of any format."""


class Hazard(NamedTuple):
    """An instruction that writes registers of a group in flight. Lines are those of the listing, from 1."""

    line: int
    instruction: str
    registers: frozenset[int]
    group: int


class Group(NamedTuple):
    """Products that end together: the line of the last, and the registers that they read."""

    line: int
    reads: frozenset[int]


def hazards(listing: Iterable[str]) -> list[Hazard]:
    """Those in loops with products, each of which is walked twice: the next pass may write what this one reads."""
    code = list(instructions(listing))
    labels = {label[1]: at for at, (_, text) in enumerate(code) if (label := LABEL.fullmatch(text))}
    found: dict[int, Hazard] = {}
    for at, (_, text) in enumerate(code):
        jump = JUMP.search(text)
        if jump and labels.get(jump[1], at) < at:
            found |= {hazard.line: hazard for hazard in walk(code[labels[jump[1]] : at + 1] * 2)}
    return [found[line] for line in sorted(found)]


def instructions(listing: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Lines without their comments, numbered."""
    for number, line in enumerate(listing, 1):
        if text := re.sub(r"/\*.*?\*/", "", line).strip().rstrip("; "):
            yield number, text


def walk(code: Sequence[tuple[int, str]]) -> Iterator[Hazard]:
    flying: list[Group] = []
    reads = frozenset[int]()  # of the group that has not ended
    for line, text in code:
        if PRODUCT.search(text):
            reads |= read_by(text)
            if "gsb0" in text:
                flying.append(Group(line, reads))
                reads = frozenset()
        elif wait := WAIT.search(text):
            younger = int(wait[1], 16)
            flying = flying[len(flying) - younger :] if younger else []
        elif writes := written_by(text):
            for group in flying:
                if both := writes & group.reads:
                    yield Hazard(line, text, both, group.line)


def read_by(product: str) -> frozenset[int]:
    """The registers of a product's first operand; none if it lies in shared memory."""
    operand = REGISTER.fullmatch(PRODUCT.split(product, maxsplit=1)[1].split(",")[1].strip())
    return registers(operand, OPERAND)


def written_by(text: str) -> frozenset[int]:
    """The registers that an instruction writes: the first operand, or the second after a predicate."""
    name, _, rest = PREDICATE.sub("", text).partition(" ")
    if name.startswith(READING):
        return frozenset()
    operands = [operand.strip() for operand in rest.split(",")]
    target = operands[1] if len(operands) > 1 and re.fullmatch(r"!?P\w", operands[0]) else operands[0]
    return registers(REGISTER.fullmatch(target), width(name))


def registers(first: re.Match[str] | None, n: int) -> frozenset[int]:
    return frozenset(range(int(first[1]), int(first[1]) + n)) if first else frozenset()


def width(name: str) -> int:
    """The number of registers that an instruction of this name writes."""
    if name.startswith("LDSM"):
        return int(found[1]) if (found := re.search(r"\.([24])$", name)) else 1
    if found := re.search(r"\.(64|128)\b", name):
        return int(found[1]) // 32
    return 2 if "WIDE" in name else 1


def disassembled(cubin: bytes) -> list[str]:
    """The listing of a compiled kernel, by the tool that Triton ships."""
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [knobs.nvidia.nvdisasm.path, "-c", file.name]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
