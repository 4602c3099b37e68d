"""The compiled library: whether it can be used, and which variant of the kernels this processor runs.

`kernels()` is None if the library is missing or was built from other sources. Callers then compute in plain PyTorch.
"""

import ctypes
import logging
import os
from functools import cache, partial
from itertools import pairwise
from typing import NamedTuple

from model.errors import NoriaError, OptionError
from model.kernels.cpu import check, records
from model.kernels.cpu.build import fingerprint, library, suffix, variants
from model.kernels.cpu.functions import POOL, Kernels
from model.machine.host import KERNELS, choose_threads

log = logging.getLogger(__name__)

LEVELS = tuple(reversed(variants()))
"""Names of this architecture's variants. Their places are what `noria_level` in pool.c returns."""
BUILD = "python -m model.kernels.cpu.build (docs/trouble.md#no-compiler)"
ARITHMETIC = 1
"""The version of what the kernels compute: raise it with every change that gives an answer other bits.
`tests/e2e/test_arithmetic.py` has the answers of this version."""


def has(compiled: ctypes.CDLL, name: str) -> bool:
    """Return whether the library has the variant `name`: older compilers do not know all instructions."""
    return hasattr(compiled, f"linear_{suffix(name)}")


@cache
def available() -> tuple[str, ...]:
    """Return the names of the compiled variants that this processor runs, the best first."""
    compiled = _library()
    if compiled is None:
        return ()
    names = tuple(name for name in LEVELS[compiled.noria_level() :: -1] if has(compiled, name))
    if not names:
        log.warning("the compiled kernels have no variant for this processor, PyTorch serves; build them: %s", BUILD)
    return names


@cache
def variant(name: str) -> Kernels:
    """Return the kernels called `name`, one of `available()`."""
    compiled = _library()
    assert compiled is not None
    return Kernels(compiled, name)


def kernels() -> Kernels | None:
    """Return the best kernels of this processor; None means plain PyTorch.

    The variable NORIA_KERNELS names a variant or "torch". Raises OptionError if that variant is not there.
    """
    return _choice(os.environ.get(KERNELS, "")).kernels


def needed() -> Kernels:
    """Return the best kernels of this processor, for a scheme or a backend that needs them."""
    found = kernels()
    assert found is not None, "the compiled kernels do not serve here"
    return found


def reason() -> str:
    """Return why `kernels` returns these, for the log and /version. Raises OptionError as it does."""
    return _choice(os.environ.get(KERNELS, "")).reason


class KernelChoice(NamedTuple):
    """The chosen kernels, and why."""

    kernels: Kernels | None
    reason: str


@cache
def _choice(name: str) -> KernelChoice:
    """Choose the variant `name`, or the best for "". If it differs from the next one, or is slower, that serves."""
    known = available()
    if name == "torch" or (not name and not known):
        return KernelChoice(None, f"{KERNELS}={name}" if name else "no compiled kernels, see the log")
    if name and name not in known:
        raise OptionError(f"{KERNELS}={name} is not there, choose one of: {', '.join((*known, 'torch'))}")
    reasons = [f"{KERNELS}={name}" if name else f"the best of {', '.join(known)}"]
    candidates = known[known.index(name) :] if name else known
    for first, second in pairwise(candidates):
        fault = _fault(first, second, named=bool(name), reasons=reasons)
        if fault is None:
            return KernelChoice(variant(first), "; ".join(reasons))
        log.warning("kernels: %s; %s serves instead", fault, second)
    return KernelChoice(variant(candidates[-1]), "; ".join(reasons))


def _fault(first: str, second: str, *, named: bool, reasons: list[str]) -> str | None:
    """Return why `second` serves instead of `first`, if it does; add the findings to `reasons`."""
    wrong = check.differing(variant(first), variant(second))
    reasons.append(f"{first} differs from {second} in {', '.join(wrong)}" if wrong else f"{first} agrees with {second}")
    if wrong:
        return reasons[-1]
    if named or first not in check.MEASURED:
        return None
    ratio = check.speed(variant(first), variant(second))
    reasons.append(f"{first} is {ratio:.2f} times as fast as {second}")
    return None if ratio >= check.LEAST_GAIN else reasons[-1]


def describe(chosen: Kernels | None) -> str:
    """Describe them for the log: "native avx2" or "torch"."""
    return "torch" if chosen is None else f"native {chosen.variant}"


def arithmetic(chosen: Kernels) -> str:
    """Name the arithmetic of these kernels. Those of other machines with the same name give the same bits."""
    family = "x86" if "avx2" in variants() else "other"
    rounding = "-separate" if chosen.variant in check.SEPARATE else ""
    return f"{family}{rounding}-{ARITHMETIC}"


def use_threads(n: int) -> int:
    """Compute with n threads, the calling one included. Returns the number of threads that exist."""
    compiled = _library()
    with POOL:  # a running call has divided its work among the present threads
        return 1 if compiled is None else int(compiled.noria_threads(n))


@cache
def _library() -> ctypes.CDLL | None:
    try:
        compiled = records.opened()
        compiled.noria_fingerprint.restype = ctypes.c_char_p
        if compiled.noria_fingerprint().decode() != fingerprint():
            raise OSError(f"{library().name} was built from other sources")
    except (OSError, AttributeError) as error:
        log.warning("no compiled kernels, PyTorch serves (%s); build them: %s", error, BUILD)
        return None
    for name in filter(partial(has, compiled), LEVELS):
        check_numbers(name)
    compiled.noria_threads(choose_threads())
    return compiled


def check_numbers(name: str) -> None:
    """Raise NoriaError if a number of the variant `name` differs in C and in records.py.

    A call would compute something else. Building again does not help: the library was built from these sources.
    """
    for group, expected in records.CONSTANTS.items():
        found, _ = records.entries(f"constants_{group}", name)
        if found != expected:
            raise NoriaError(
                f"{group} of the compiled kernels are {found} in C and {dict(expected)} in Python; "
                "correct what model/kernels/cpu/records.py has or imports"
            )
