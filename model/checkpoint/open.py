"""A model directory as a stream of (name, matrix), from memory-mapped safetensors shards or from a GGUF file."""

import zlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from model.checkpoint.config import gguf_config, read_config
from model.checkpoint.experts import split_experts
from model.checkpoint.files import DTYPES, ShardFile, find_shards, fingerprint, layout, read_shard
from model.checkpoint.gguf.open import GgufModel, open_gguf
from model.checkpoint.gguf.weights import read_weights
from model.checkpoint.model_files import is_gguf
from model.checkpoint.names import canonical_name
from model.checkpoint.quantized.config import OwnBits, WeightKind, read_quantization
from model.checkpoint.quantized.parts import own_bits, quantized_part, weight_parts
from model.checkpoint.quantized.weights import matrices
from model.checkpoint.stored import Stored
from model.config.model import ModelConfig
from model.errors import ModelError, one_line, short


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened model directory, of which only headers have been read.

    `rotation` is the order of the q and k rows: "half" pairs row i with row i + head_dim / 2 (HF), "adjacent"
    pairs row 2i with row 2i + 1 (native, GGUF). `read` is `tensors` of the `files`, each with the places where its
    tensors begin.
    `kind` is what most projections are: it decides which scheme --quantize auto stands for. `summary` says for the log
    how safetensors are quantized. `own_bits` are those of a weight of the projections in the file's own blocks, on
    average, or of its 4-bit floats; None if it has neither.
    """

    config: ModelConfig
    rotation: Literal["half", "adjacent"]
    read: Callable[[Collection[str]], Iterator[tuple[str, Stored]]]
    files: tuple[tuple[Path, tuple[int, ...]], ...] = ()
    kind: WeightKind = "floats"
    summary: str = ""
    own_bits: OwnBits = None

    def tensors(self, skip: Collection[str] = ()) -> Iterator[tuple[str, Stored]]:
        """Yield native names and weights in the file's own format, each weight once, but not those in `skip`."""
        return self.read(skip)

    @property
    def fingerprint(self) -> str:
        """Return a short hash of `prints`: the same for the same weights in the same files."""
        return f"{zlib.crc32(self.prints.encode()):08x}"

    @property
    def prints(self) -> str:
        """Return size and hash of a sample of each file, with bytes of each tensor."""
        return "-".join(fingerprint(file, starts) for file, starts in self.files)


def open_checkpoint(directory: Path, *, max_model_len: int | None = None) -> Checkpoint:
    """Open the checkpoint in a directory or a GGUF file. Its files are complete, its names and dtypes known.

    Raises ModelError, one line, for a file that is missing, truncated or unknown, or quantized in an unknown way.
    """
    if is_gguf(directory):
        model = open_gguf(directory)
        config, quantized = gguf_config(model, max_model_len), model.index.quantized
        kind: WeightKind = "blocks" if quantized else "floats"
        read = partial(_gguf_weights, model)
        return Checkpoint(config, "adjacent", read, model.files, kind, own_bits=model.index.block_bits)
    shards = tuple(read_shard(path) for path in find_shards(directory))
    files = tuple((shard.path, shard.starts) for shard in shards)
    config = read_config(directory, max_model_len=max_model_len)
    rotation: Literal["half", "adjacent"] = "half" if layout(directory) == "hf" else "adjacent"
    if (found := read_quantization(directory)) is not None:
        weights = weight_parts(shards)
        bits = own_bits(weights, found, tied_head=config.tied_head)
        return Checkpoint(config, rotation, partial(matrices, weights, found), files, found.kind, found.summary, bits)
    for shard in shards:
        _check_weights(shard, rotation)
    return Checkpoint(config, rotation, partial(_tensors, shards, config.n_experts), files)


def _gguf_weights(model: GgufModel, skip: Collection[str]) -> Iterator[tuple[str, Stored]]:
    yield from read_weights(model.index, skip)
    if model.encoder is not None:
        yield from read_weights(model.encoder.index, skip)


def _tensors(shards: Sequence[ShardFile], n_experts: int, skip: Collection[str]) -> Iterator[tuple[str, Stored]]:
    """Yield native names and weights, one file open at a time. Their bytes are read from the file as they are used."""
    from safetensors import SafetensorError, safe_open

    for path in (shard.path for shard in shards):
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                for name in file.keys():  # noqa: SIM118 - not a mapping
                    if known := canonical_name(name):
                        found = split_experts(known, file.get_tensor(name), n_experts)
                        yield from (pair for pair in found if pair[0] not in skip)
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{path.name} cannot be read: {one_line(error)}; download it again") from error


def _check_weights(shard: ShardFile, rotation: str) -> None:
    if (part := quantized_part(shard)) is not None:
        absent = "config.json has no quantization_config" if rotation == "half" else "params.json has no quantization"
        raise ModelError(
            f"the checkpoint has quantized weights ({short(part)} in {short(shard.dtypes[part])}), but {absent}; "
            "download the model again, with its configuration"
        )
    for name, dtype in shard.dtypes.items():
        if canonical_name(name) is not None and dtype not in DTYPES:
            raise ModelError(f"the weight {short(name)} has dtype {short(dtype)}; Noria supports {', '.join(DTYPES)}")
