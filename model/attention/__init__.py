"""Attention backends by name. A new one is a file here and a row below; the contract test finds it."""

import torch

from model.attention.base import Attention
from model.attention.reference import ReferenceAttention
from model.attention.sdpa import SdpaAttention
from model.errors import OptionError

BACKENDS: dict[str, type[Attention]] = {"reference": ReferenceAttention, "sdpa": SdpaAttention}


def choose(name: str, device: torch.device) -> tuple[str, Attention]:
    """The backend called `name` ("auto": the best for `device`, so far sdpa everywhere) and its name.

    Raises OptionError for an unknown name.
    """
    if name == "auto":
        name = "sdpa"
    if name not in BACKENDS:
        raise OptionError(f"--attention {name} is not known, choose one of: auto, {', '.join(BACKENDS)}")
    return name, BACKENDS[name]()
