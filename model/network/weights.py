"""Loads a checkpoint into a Transformer: cut, reorder, fuse, cast, assign. No tensor may be missing or left over."""

from collections.abc import Callable, Iterable

import torch
from torch import nn

from model.checkpoint.blocks import check_finite
from model.checkpoint.stored import Stored
from model.errors import ModelError
from model.kernels import cuda as triton
from model.linear.compiled import Compiled
from model.linear.floats import WeightsOnly
from model.network.latent import Expansion
from model.network.moe import MoE
from model.network.tensors import EMBEDDINGS, TensorPlace, own_part, places, whole_shapes
from model.network.transformer import Transformer
from model.sharding.shard import Shard


def load(
    model: Transformer,
    shard: Shard,
    rotation: str,
    tensors: Iterable[tuple[str, Stored]],
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[float], None],
    embeddings: torch.dtype | None = None,
) -> None:
    """Fill `model`, built on the meta device, with the shard's parts of `tensors`, which have Mistral's native names.

    The tensors are whole, and all that are not `elsewhere`. Of one that is mapped from a file only the part is read.

    `rotation` is the layout of q and k rows in the file: "half" or "adjacent". `progress` gets fractions 0..1.
    The embeddings are stored in the format `embeddings`, or like all others in `dtype`.
    Raises ModelError naming the tensor that is missing, unexpected, duplicate or of the wrong shape.
    """
    _reserve(model, dtype, device)
    known, shapes = dict(places(shard)), whole_shapes(shard)
    missing = set(known)
    for name, tensor in tensors:
        if (place := known.get(name)) is None:
            raise ModelError(f"the checkpoint has a tensor {name!r} that a {shard.whole.family} model has no place for")
        if name not in missing:
            raise ModelError(f"the checkpoint has the tensor {name!r} twice")
        missing.remove(name)
        if tensor.shape != shapes[name]:
            raise ModelError(
                f"tensor {name!r} has shape {list(tensor.shape)}, the configuration needs {list(shapes[name])}"
            )
        of_embeddings = name == EMBEDDINGS
        try:
            own = _internal(tensor.part(*own_part(shard, name, shapes[name], place.shape)).to(device), place, rotation)
            if not of_embeddings or model.has_embeddings:
                _fill(model, place, own, embeddings or dtype if of_embeddings else dtype, device)
            if of_embeddings and model.has_head and shard.whole.tied_head:
                _tie(model, own)
        except ValueError as error:
            raise ModelError(f"tensor {name!r} of the checkpoint is damaged: {error}; download it again") from error
        progress(1 - len(missing) / len(known))
    if missing:
        others = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(f"the checkpoint has no tensor {min(missing)!r}{others}")


def _internal(tensor: Stored, place: TensorPlace, rotation: str) -> Stored:
    """Return the tensor as a matrix, with its rows in the order of the network."""
    order = place.order(len(tensor), rotation)
    tensor = tensor if order is None else tensor[order]
    return Stored(tensor.values.flatten(1)) if len(tensor.shape) > 2 else tensor


def _reserve(model: Transformer, dtype: torch.dtype, device: torch.device) -> None:
    """Allocate the weights that do not get their memory when they arrive."""
    for module in model.modules():
        if isinstance(module, MoE) and triton.serve_on(device) and not module.by_torch:
            module.reserve(dtype, device)
        elif isinstance(module, WeightsOnly) and module.weights is None:
            module.assign_weights(module.allocate((), dtype, device))


def _tie(model: Transformer, embeddings: Stored) -> None:
    """Make the head the embeddings themselves, or a quantized copy of them."""
    if isinstance(model.output, Compiled):
        model.output.take(0, embeddings)
    else:
        model.output.weight = model.tok_embeddings.weight


def _fill(model: Transformer, place: TensorPlace, rows: Stored, dtype: torch.dtype, device: torch.device) -> None:
    """Store rows in their parameter. The first of its parts to arrive allocates it."""
    path, _, leaf = place.parameter.rpartition(".")
    module = model.get_submodule(path)
    if isinstance(module, Expansion):
        module.take(rows, dtype, device)
        return
    if isinstance(module, Compiled | WeightsOnly):
        module.take(place.first, rows)
        return
    parameter = getattr(module, leaf)
    if parameter.is_meta:
        parameter = nn.Parameter(torch.empty(parameter.shape, dtype=dtype, device=device), requires_grad=False)
        setattr(module, leaf, parameter)
    first = place.first
    for part in rows.parts():
        check_finite(parameter.data.narrow(0, first, len(part)).copy_(part))
        first += len(part)
