"""The weights of a GGUF file under their native names. No torch."""

from collections.abc import Iterator
from dataclasses import replace

from model.checkpoint.gguf.index import Entry
from model.checkpoint.gguf.reader import is_readable, readable_kinds
from model.checkpoint.names import Names, native_name
from model.errors import ModelError, short


def entries(tensor: Entry, names: Names) -> Iterator[Entry]:
    """An entry for the tensor, or one for each expert in it. Raises ModelError for an unknown name or kind."""
    name = native_name(tensor.name, names)
    if name is None:
        raise ModelError(f"the GGUF file has a tensor {short(tensor.name)}, which no supported model family has")
    if not is_readable(tensor.kind):
        reads = ", ".join(readable_kinds())
        raise ModelError(f"the GGUF file has {tensor.name!r} of kind {tensor.kind}; Noria reads {reads}")
    if "*" not in name:
        yield replace(tensor, name=name)
        return
    n_experts, *shape = tensor.shape
    size = tensor.n_bytes // n_experts
    for expert in range(n_experts):
        where = tensor.offset + expert * size
        yield Entry(name.replace("*", str(expert)), tensor.kind, tuple(shape), where, size, tensor.file)
