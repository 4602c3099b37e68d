"""The formats of keys and values in the cache, by name."""

from collections.abc import Mapping
from dataclasses import dataclass

from model.config.model import VALUE_BYTES
from model.errors import OptionError


@dataclass(frozen=True, slots=True)
class CacheFormat:
    """A format of keys and values: `dtype` is PyTorch's name of it.

    A head's key, or its value, takes `value_bytes` for each channel, rounded up to `multiple` channels, and
    `scale_bytes`. `needs` says which attention backend keeps it, empty if several do.
    """

    name: str
    dtype: str
    value_bytes: int
    scale_bytes: int = 0
    multiple: int = 1
    needs: str = ""

    def head_bytes(self, head_dim: int) -> int:
        """Return the bytes of one head's key, or of its value, at one position."""
        return -(-head_dim // self.multiple) * self.multiple * self.value_bytes + self.scale_bytes


CACHE_FORMATS: Mapping[str, CacheFormat] = {
    **{name: CacheFormat(name, name, n_bytes) for name, n_bytes in VALUE_BYTES.items()},
    "int8": CacheFormat(
        "int8", "int8", 1, scale_bytes=4, multiple=16, needs="--attention paged (a CPU, compiled kernels)"
    ),
    "fp8": CacheFormat("fp8", "float8_e4m3fn", 1, needs="--attention triton (a GPU of compute capability 8.9 or more)"),
}
KV_DTYPES = ("auto", *(name for name in CACHE_FORMATS if name not in VALUE_BYTES))
"""Values of --kv-dtype; auto is the model's format."""


def cache_format(name: str, dtype: str) -> CacheFormat:
    """Return the format of keys and values for --kv-dtype `name`; "auto" is the model's `dtype`."""
    if name not in KV_DTYPES:
        raise OptionError(f"--kv-dtype {name} is not known, choose one of: {', '.join(KV_DTYPES)}")
    return CACHE_FORMATS[dtype if name == "auto" else name]
