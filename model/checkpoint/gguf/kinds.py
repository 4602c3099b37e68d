"""GGUF files of a hub repository: the kind that each one's name says, and the choice between them. No torch."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from model.checkpoint.gguf.parts import whole_name
from model.errors import ModelError

PREFERENCE = (
    *("Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q6_K", "Q8_0", "BF16", "F16", "F32"),
    *("IQ4_NL", "IQ4_XS", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K"),
)
"""Kinds in the order of the choice where none is named: 4 bits first, then what is larger, then what loses more."""
_KIND = re.compile(r"[-._]((?:UD-)?(?:I?Q\d(?:_\w+)?|TQ\d_\d|BF16|F16|F32|FP16|FP32|MXFP4(?:_\w+)?))", re.IGNORECASE)
_ALIASES = {"FP16": "F16", "FP32": "F32"}
_NO_MODEL = ("mmproj", "imatrix")
"""Beginnings of the names of files that are no language model."""


def find_kinds(files: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """The GGUF models among a repository's files by kind in upper case: the files of each, the parts in order.

    A model whose name says no kind has the kind "". Two models of one kind have the files of both.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted(files):
        path = PurePosixPath(file)
        if path.suffix.lower() == ".gguf" and not path.name.lower().startswith(_NO_MODEL):
            found[_kind(path)].append(file)
    return found


def choose(name: str, kinds: Mapping[str, Sequence[str]], kind: str | None) -> str:
    """The kind to serve: the wanted one, else the first of `PREFERENCE`.

    Raises ModelError, which lists the kinds that there are, if it is not there or not one model.
    """
    listed = ", ".join(sorted(filter(None, kinds))) or "no GGUF file"
    if kind is not None and kind.upper() not in kinds:
        raise ModelError(f"{name} has no GGUF file of kind {kind} on the hub; it has {listed}")
    ranked = [one for one in PREFERENCE if one in kinds] or sorted(kinds)
    chosen = ranked[0] if kind is None else kind.upper()
    models = {whole_name(PurePosixPath(file).stem) for file in kinds[chosen]}
    if len(models) > 1:
        raise ModelError(
            f"{name} has {len(models)} models of kind {chosen} on the hub ({', '.join(sorted(models)[:3])}, ...); "
            "download one of them and name its file"
        )
    return chosen


def _kind(path: PurePosixPath) -> str:
    """The last kind in the file's name, else in its folder's."""
    for part in (whole_name(path.stem), path.parent.name):
        if found := _KIND.findall(f"-{part}"):
            return _ALIASES.get(found[-1].upper(), found[-1].upper())
    return ""
