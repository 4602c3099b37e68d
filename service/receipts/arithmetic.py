"""The arithmetic of an answer, and whether another machine promises the same bits (docs/determinism.md)."""

from collections.abc import Mapping
from typing import Any

from typing_extensions import TypedDict


class Arithmetic(TypedDict):
    """The facts on which the bits of an answer depend beside the weights and the request.

    `bits` is the name of what the kernels compute: machines with the same name, scheme and data types promise equal
    bits. It is null where nothing is promised. `kernels` is the variant, `quantize` the scheme.
    """

    bits: str | None
    quantize: str
    dtype: str
    kv_dtype: str
    kernels: str
    device: str


def arithmetic_of(description: Mapping[str, Any]) -> Arithmetic:
    """Return the arithmetic of an engine, by its own description (`engine` of `/version`)."""
    about = {name: str(description.get(name, "")) for name in Arithmetic.__annotations__}
    return Arithmetic(**about | {"bits": description.get("arithmetic")})  # type: ignore[typeddict-item]


def no_promise(receipt: Mapping[str, Any], here: Arithmetic) -> str:
    """Return why equal bits are not promised when the answer of a receipt is computed again; empty if they are."""
    there: Arithmetic = receipt["arithmetic"]
    for name, one in (("there", there), ("here", here)):
        if one["bits"] is None:
            return f"{one['quantize']} in {one['kernels']} on {one['device']} ({name}) promises no bits"
    if there["bits"] != here["bits"]:
        return f"the kernels compute {there['bits']} there and {here['bits']} here"
    for name in ("quantize", "dtype", "kv_dtype"):
        if there[name] != here[name]:  # type: ignore[literal-required]
            return f"{name} is {there[name]} there and {here[name]} here"  # type: ignore[literal-required]
    if receipt["images"]:
        return "PyTorch encodes images and audio, and promises no bits across machines"
    if receipt["adapter"] is not None and there["kernels"] != here["kernels"]:
        return f"adapters promise bits on one variant, which is {there['kernels']} there and {here['kernels']} here"
    return ""
