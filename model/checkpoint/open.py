"""A model directory as a stream of (name, matrix), from memory-mapped safetensors shards or from a GGUF file."""

import zlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from torch import Tensor

from model.checkpoint.families import gguf_config, read_config
from model.checkpoint.files import DTYPES, SAMPLE_BLOCKS, Shard, find_shards, fingerprint, layout, read_shard
from model.checkpoint.gguf.open import open_gguf
from model.checkpoint.gguf.weights import GgufWeights
from model.checkpoint.matrices import Matrix
from model.checkpoint.model_files import is_gguf
from model.checkpoint.names import canonical_name
from model.checkpoint.quantized.config import Kind, Quantization, read_quantization
from model.checkpoint.quantized.parts import StoredWeight, block_bits, quantized_part, stored_weights
from model.checkpoint.quantized.weights import matrices
from model.config import ModelConfig
from model.errors import ModelError, one_line, short


class TensorSource(Protocol):
    """Weights in files: `Checkpoint` documents the fields."""

    @property
    def kind(self) -> Kind: ...

    @property
    def summary(self) -> str: ...

    @property
    def block_bits(self) -> float | None: ...

    @property
    def fingerprint(self) -> str: ...

    def tensors(self, skip: Collection[str] = ()) -> Iterator[tuple[str, Matrix]]: ...


@dataclass(frozen=True, slots=True)
class Safetensors:
    """Weights in the safetensors shards of a directory."""

    shards: tuple[Shard, ...]
    n_experts: int = 0
    kind: Kind = "floats"
    summary: str = ""

    @property
    def fingerprint(self) -> str:
        return _fingerprint(self.shards)

    @property
    def block_bits(self) -> None:
        return None

    def tensors(self, skip: Collection[str] = ()) -> Iterator[tuple[str, Matrix]]:
        """Native names and tensors, one shard open at a time. Their bytes are read from the file as they are used."""
        from safetensors import SafetensorError, safe_open

        for shard in self.shards:
            try:
                with safe_open(shard.path, framework="pt", device="cpu") as file:
                    for name in file.keys():  # noqa: SIM118 - not a mapping
                        if known := canonical_name(name):
                            found = split_experts(known, file.get_tensor(name), self.n_experts)
                            yield from (pair for pair in found if pair[0] not in skip)
            except (SafetensorError, OSError) as error:
                raise ModelError(f"{shard.path.name} cannot be read: {one_line(error)}; download it again") from error


@dataclass(frozen=True, slots=True)
class QuantizedSafetensors:
    """Quantized weights in the safetensors shards of a directory."""

    shards: tuple[Shard, ...]
    weights: tuple[StoredWeight, ...]
    quantization: Quantization
    tied_head: bool

    @property
    def kind(self) -> Kind:
        return self.quantization.kind

    @property
    def summary(self) -> str:
        return self.quantization.summary

    @property
    def fingerprint(self) -> str:
        return _fingerprint(self.shards)

    @property
    def block_bits(self) -> float | None:
        return block_bits(self.weights, self.quantization, tied_head=self.tied_head)

    def tensors(self, skip: Collection[str] = ()) -> Iterator[tuple[str, Matrix]]:
        """Native names and matrices, the files of one weight open at a time."""
        return matrices([weight for weight in self.weights if weight.name not in skip], self.quantization)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened model directory, of which only headers have been read.

    `rotation` is the order of the q and k rows: "half" pairs row i with row i + head_dim / 2 (HF), "adjacent"
    pairs row 2i with row 2i + 1 (native, GGUF).
    """

    config: ModelConfig
    rotation: Literal["half", "adjacent"]
    source: TensorSource

    def tensors(self, skip: Collection[str] = ()) -> Iterator[tuple[str, Matrix]]:
        """Native names and matrices in the file's own format, each weight once, but not those in `skip`."""
        return self.source.tensors(skip)

    @property
    def kind(self) -> Kind:
        """What most of its projections are: it decides which scheme --quantize auto stands for."""
        return self.source.kind

    @property
    def summary(self) -> str:
        """How its safetensors are quantized, for the log; empty for others."""
        return self.source.summary

    @property
    def fingerprint(self) -> str:
        """A hash of a sample of each file: the same for the same weights in the same files."""
        return self.source.fingerprint

    @property
    def block_bits(self) -> float | None:
        """Bits of a weight of its projections in its own blocks, on average; None if it has no blocks."""
        return self.source.block_bits


def open_checkpoint(directory: Path, *, max_model_len: int | None = None) -> Checkpoint:
    """The checkpoint in a directory or a GGUF file. Its files are complete, its names and dtypes known.

    Raises ModelError, one line, for a file that is missing, truncated or unknown, or quantized in an unknown way.
    """
    if is_gguf(directory):
        model = open_gguf(directory)
        return Checkpoint(gguf_config(model, max_model_len), "adjacent", GgufWeights(model.index))
    shards = tuple(read_shard(path) for path in find_shards(directory))
    config = read_config(directory, max_model_len=max_model_len)
    rotation: Literal["half", "adjacent"] = "half" if layout(directory) == "hf" else "adjacent"
    if (quantization := read_quantization(directory)) is not None:
        weights = stored_weights(shards)
        return Checkpoint(config, rotation, QuantizedSafetensors(shards, weights, quantization, config.tied_head))
    for shard in shards:
        _check_weights(shard, rotation)
    return Checkpoint(config, rotation, Safetensors(shards, config.n_experts))


def _fingerprint(shards: tuple[Shard, ...]) -> str:
    prints = "-".join(fingerprint(shard.path, SAMPLE_BLOCKS) for shard in shards)
    return f"{zlib.crc32(prints.encode()):08x}"


def _check_weights(shard: Shard, rotation: str) -> None:
    if (part := quantized_part(shard)) is not None:
        absent = "config.json has no quantization_config" if rotation == "half" else "params.json has no quantization"
        raise ModelError(
            f"the checkpoint has quantized weights ({short(part)} in {short(shard.dtypes[part])}), but {absent}; "
            "download the model again, with its configuration"
        )
    for name, dtype in shard.dtypes.items():
        if canonical_name(name) is not None and dtype not in DTYPES:
            raise ModelError(f"the weight {short(name)} has dtype {short(dtype)}; Noria supports {', '.join(DTYPES)}")


def split_experts(name: str, tensor: Tensor, n_experts: int) -> Iterator[tuple[str, Tensor]]:
    """Native names and matrices. `name` has a star for the number of an expert, or else is that of the tensor itself.

    Hugging Face has w1 and w3 as one "w13" [n_experts, 2 hidden_dim, dim], and w2 [n_experts, dim, hidden_dim]. The
    first Mixtral has w1, w3 and the transposed w2 as [n_experts * hidden_dim, dim].
    Raises ModelError for a tensor with another number of experts.
    """
    if "*" not in name:
        yield name, tensor
        return
    found = _of_experts(tensor, n_experts, transposed=".w2." in name)
    if len(found) != n_experts:
        raise ModelError(f"tensor {name!r} has shape {list(tensor.shape)}, the configuration has {n_experts} experts")
    for expert, matrix in enumerate(found):
        own = name.replace("*", str(expert))
        if ".w13." not in own:
            yield own, matrix
            continue
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
