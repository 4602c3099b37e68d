"""GGUF files of a hub repository: the kind that each one's name says, and the choice between them. No torch."""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath

from model.checkpoint.gguf.parts import whole_name
from model.errors import ModelError

PREFERENCE = (
    *("Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q6_K", "Q8_0", "BF16", "F16", "F32"),
    *("IQ4_NL", "IQ4_XS", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K", "Q2_0", "Q1_0"),
)
"""Kinds in the order of the choice where none is named: 4 bits first, then what is larger, then what loses more."""
_NAMES = r"(?:UD-)?I?Q\d_\w+|TQ\d_\d|BF16|F16|F32|FP16|FP32|MXFP4(?:_\w+)?"
_KIND = re.compile(rf"[-._]({_NAMES}|I?Q\d)(?![a-z0-9])|({_NAMES})$", re.IGNORECASE)
"""A kind after a separator, or at the end of a name: devstralQ4_K_M."""
_ALIASES = {"FP16": "F16", "FP32": "F32"}
_PROJECTOR, _STATISTICS = (re.compile(rf"(?<![a-z0-9]){word}(?![a-z0-9])", re.I) for word in ("mmproj", "imatrix"))
"""Words in the names of files that are no language model. A model may say that it was made with an imatrix."""


def is_projector(name: str) -> bool:
    """Return whether a file's name says that it has the image encoder of a GGUF model."""
    return name.lower().endswith(".gguf") and _PROJECTOR.search(name) is not None


def find_kinds(files: Iterable[str]) -> Mapping[str, Sequence[str]]:
    """Find a repository's GGUF models by kind in upper case: the files of each, the parts in order.

    A model whose name says no kind has the kind "". Two models of one kind have the files of both.
    """
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted(files):
        path = PurePosixPath(file)
        if path.suffix.lower() == ".gguf" and _is_model(path.stem):
            found[_kind(path)].append(file)
    return found


def choose(name: str, kinds: Mapping[str, Sequence[str]], kind: str | None) -> str:
    """Choose the kind to serve: `kind`, else the first of `PREFERENCE`.

    Raises ModelError, which lists the kinds that there are, if it is not there or not one model.
    """
    requested = None if kind is None else _existing(kind.upper(), kinds)
    if requested is not None and requested not in kinds:
        listed = ", ".join(sorted(filter(None, kinds))) or ("GGUF files of no named kind" if kinds else "no GGUF file")
        raise ModelError(f"{name} has no GGUF file of kind {kind} on the hub; it has {listed}")
    ranked = [one for one in PREFERENCE if one in kinds] or sorted(kinds)
    chosen = ranked[0] if requested is None else requested
    models = {whole_name(PurePosixPath(file).stem) for file in kinds[chosen]}
    if len(models) > 1:
        raise ModelError(
            f"{name} has {len(models)} models of {described(chosen)} on the hub "
            f"({', '.join(sorted(models)[:3])}, ...); download one of them and name its file"
        )
    return chosen


def described(kind: str) -> str:
    """Describe a kind in a message: the name of a file may say none."""
    return f"kind {kind}" if kind else "no named kind"


def _existing(kind: str, kinds: Mapping[str, Sequence[str]]) -> str:
    """Return the existing kind for a requested one: its other name, or the only one of dynamic quantization ("UD-")."""
    kind = _ALIASES.get(kind, kind)
    return f"UD-{kind}" if kind not in kinds and f"UD-{kind}" in kinds else kind


def _is_model(stem: str) -> bool:
    return not _PROJECTOR.search(stem) and (_STATISTICS.search(stem) is None or bool(_named(stem)))


def _kind(path: PurePosixPath) -> str:
    """Return the last kind in the file's name, else in its folder's."""
    return _named(whole_name(path.stem)) or _named(path.parent.name)


def _named(text: str) -> str:
    found = [(after or at_end).upper() for after, at_end in _KIND.findall(f"-{text}")]
    return _ALIASES.get(found[-1], found[-1]) if found else ""
