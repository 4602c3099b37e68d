"""Weight schemes for projections: one file a scheme, chosen here by name."""

from collections.abc import Mapping

from torch import nn

from model.errors import OptionError

SCHEMES: Mapping[str, type[nn.Linear]] = {"none": nn.Linear}


def check(name: str) -> None:
    """Raise OptionError for a scheme that is not there."""
    if name not in SCHEMES:
        raise OptionError(f"--quantize {name} is not known, choose one of: {', '.join(SCHEMES)}")
