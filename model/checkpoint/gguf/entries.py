"""The weights of a GGUF file under their native names. No torch."""

from collections.abc import Iterator
from dataclasses import replace

from model.checkpoint.gguf.index import READABLE, TensorEntry
from model.checkpoint.names import Names, native_name
from model.errors import ModelError, short


def entries(tensor: TensorEntry, names: Names) -> Iterator[TensorEntry]:
    """Yield an entry for the tensor, or one for each expert in it. Raises ModelError for an unknown name or kind."""
    name = native_name(tensor.name, names)
    if name is None:
        raise ModelError(f"the GGUF file has a tensor {short(tensor.name)}, which no supported model family has")
    if tensor.kind not in READABLE:
        reads = ", ".join(READABLE)
        raise ModelError(f"the GGUF file has {tensor.name!r} of kind {tensor.kind}; Noria reads {reads}")
    if "*" not in name:
        yield replace(tensor, name=name)
        return
    n_experts, n_rows, *shape = tensor.shape
    parts = [name.replace(".w13.", f".{part}.") for part in ("w1", "w3")] if ".w13." in name else [name]
    own, size = (n_rows // len(parts), *shape), tensor.n_bytes // n_experts // len(parts)
    for number, part in enumerate(parts * n_experts):
        found = part.replace("*", str(number // len(parts)))
        yield TensorEntry(found, tensor.kind, own, tensor.offset + number * size, size, tensor.file)
