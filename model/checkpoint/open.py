"""A model directory as a stream of (name, tensor), read shard by shard through a memory map."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from model.checkpoint.files import DTYPES, Shard, find_shards, layout, read_shard
from model.config import ModelConfig
from model.errors import ModelError
from model.families import canonical_name, read_config

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened directory: nothing but headers has been read.

    `rotation` is the order of the q and k rows: "half" pairs row i with row i + head_dim / 2 (HF), "adjacent"
    pairs row 2i with row 2i + 1 (native).
    """

    config: ModelConfig
    rotation: Literal["half", "adjacent"]
    shards: tuple[Shard, ...]

    def tensors(self, device: str = "cpu") -> Iterator[tuple[str, "torch.Tensor"]]:
        """Canonical names and tensors in the file's dtype, each weight once, one shard open at a time."""
        from safetensors import SafetensorError, safe_open

        for shard in self.shards:
            try:
                with safe_open(shard.path, framework="pt", device=device) as file:
                    for name in file.keys():  # noqa: SIM118 - not a mapping
                        if known := canonical_name(name, tied_head=self.config.tied_head):
                            yield known, file.get_tensor(name)
            except (SafetensorError, OSError) as error:
                raise ModelError(f"cannot read {shard.path.name} of the model: {error}; download it again") from error


def open_checkpoint(directory: Path, *, max_model_len: int | None = None) -> Checkpoint:
    """Read config and headers, check that shards are whole and names and dtypes known.

    Raises ModelError, one line, for anything missing, truncated, unknown or quantized.
    """
    shards = tuple(read_shard(path) for path in find_shards(directory))
    config = read_config(directory, max_model_len=max_model_len)
    for shard in shards:
        _check_weights(shard, config.tied_head)
    return Checkpoint(
        config=config,
        rotation="half" if layout(directory) == "hf" else "adjacent",
        shards=shards,
    )


def _check_weights(shard: Shard, tied_head: bool) -> None:
    for name, dtype in shard.dtypes.items():
        if canonical_name(name, tied_head=tied_head) is not None and dtype not in DTYPES:
            raise ModelError(f"weight {name!r} has dtype {dtype}, supported are {', '.join(DTYPES)}")
