"""Adapters as mistral-finetune writes them: lora.safetensors, with the native names and order of rows.

The file says nothing about its factor. params.json beside it may; else it is that of mistral-inference, 2.0.
"""

import re
from pathlib import Path
from typing import Any

from model.checkpoint.adapters.pairs import AdapterFile, Side, read_pairs
from model.checkpoint.configs.fields import Fields
from model.checkpoint.files import read_json
from model.errors import ModelError, short

WEIGHTS, PARAMS = "lora.safetensors", "params.json"
DEFAULT_SCALING = 2.0
_NAME = re.compile(r"(.+)\.lora_([AB])\.weight")


def open_native(path: Path) -> AdapterFile:
    """Open an adapter in a file of pairs. Raises ModelError as `read_pairs`, and for a `lora` that contradicts it."""
    params = path.with_name(PARAMS)
    declared = _declared(params) if params.is_file() else {}
    scaling = Fields(declared, f"lora of {PARAMS}").positive("scaling", DEFAULT_SCALING)

    def scale(name: str, rank: int) -> float:
        if declared.get("rank", rank) != rank:
            raise ModelError(f"{path.name}: {short(name)} has rank {rank}, {PARAMS} says {short(declared['rank'])}")
        return scaling

    return read_pairs(path, "adjacent", _side, scale, *([params] if params.is_file() else []))


def _side(name: str) -> Side | None:
    match = _NAME.fullmatch(name)
    return match and Side(f"{match[1]}.weight", match[2])


def _declared(params: Path) -> dict[str, Any]:
    """Read the object `lora` of params.json; empty if there is none."""
    declared = read_json(params).get("lora") or {}
    if not isinstance(declared, dict):
        raise ModelError(f"{PARAMS} must have an object in lora, it has {short(declared)}")
    return declared
