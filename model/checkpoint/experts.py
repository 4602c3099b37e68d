"""The matrices of single experts, of tensors that hold those of all experts."""

from collections.abc import Iterator

from torch import Tensor

from model.checkpoint.stored import Stored
from model.errors import ModelError


def split_experts(name: str, tensor: Tensor, n_experts: int) -> Iterator[tuple[str, Stored]]:
    """Yield native names and matrices. `name` has a star for the number of an expert, or else is the tensor's own name.

    Hugging Face has w1 and w3 as one "w13" [n_experts, 2 hidden_dim, dim], and w2 [n_experts, dim, hidden_dim]. The
    first Mixtral has w1, w3 and the transposed w2 as [n_experts * hidden_dim, dim].
    Raises ModelError for a tensor with another number of experts.
    """
    if "*" not in name:
        yield name, Stored(tensor)
        return
    found = _of_experts(tensor, n_experts, transposed=".w2." in name)
    if len(found) != n_experts:
        raise ModelError(f"tensor {name!r} has shape {list(tensor.shape)}, the configuration has {n_experts} experts")
    for expert, matrix in enumerate(found):
        yield from named(name, expert, Stored(matrix))


def named(name: str, expert: int, matrix: Stored) -> Iterator[tuple[str, Stored]]:
    """Yield the matrix of an expert under its own name; that of "w13" as its two halves."""
    own = name.replace("*", str(expert))
    if ".w13." not in own:
        yield own, matrix
        return
    half = len(matrix) // 2
    yield own.replace(".w13.", ".w1."), matrix[:half]
    yield own.replace(".w13.", ".w3."), matrix[half:]


def _of_experts(tensor: Tensor, n_experts: int, *, transposed: bool) -> list[Tensor]:
    if tensor.dim() == 3:
        return list(tensor)
    if tensor.dim() != 2 or not n_experts or len(tensor) % n_experts:
        return []
    parts = tensor.chunk(n_experts)
    return [part.T if transposed else part for part in parts]
