"""Checkpoints of random weights: made on the device while the network reads them, or written to a file.

`python -m benchmarks.random_weights FOLDER` writes a checkpoint of LATENT, 4 GB. With `--audio` it is VOXTRAL, 9.4 GB,
and its tokenizer with the vocabulary that mistral-common ships.
"""

import argparse
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from benchmarks.gpu.shapes import SMALL_4
from model.checkpoint.configs.latent import KEYS
from model.checkpoint.configs.params import EXPERT_GROUPS, EXPERTS
from model.checkpoint.open import Checkpoint
from model.checkpoint.stored import Stored
from model.config.audio import AudioConfig
from model.config.latent import LatentConfig
from model.config.model import ModelConfig, QueryTemperature
from model.network.lora import Lora, LowRank, LowRankPart
from model.network.tensors import EMBEDDINGS, places
from model.sharding.shard import shard_of
from model.tokenizers.tekken import OLD_SPECIAL_TOKENS

LATENT = replace(
    SMALL_4,
    vocab_size=32_768,
    max_position=4096,
    n_experts=32,
    latent=LatentConfig(1024, 512, 64, 64, 128),
    query_temperature=QueryTemperature(8192, 0.1),
)
"""Two layers like Small 4's, with fewer experts, and latents of the one size that vLLM's kernels for CPUs take."""
VOXTRAL = ModelConfig(
    family="mistral",
    dim=3072,
    n_layers=30,
    n_heads=32,
    n_kv_heads=8,
    head_dim=128,
    hidden_dim=8192,
    vocab_size=131_072,
    norm_eps=1e-5,
    rope_theta=1e8,
    max_position=131_072,
    windows=(None,) * 30,
    audio=AudioConfig(dim=1280, n_layers=32, n_heads=20, hidden_dim=5120),
)
"""Voxtral Mini 3B."""
SPECTRUM = {"sampling_rate": 16_000, "frame_rate": 12.5}
MEL = {"num_mel_bins": 128, "hop_length": 160, "window_size": 400}
AUDIO_TOKENS = {24: "[AUDIO]", 25: "[BEGIN_AUDIO]", 34: "[TRANSCRIBE]"}


def tensors(config: ModelConfig, device: torch.device, skip: Collection[str] = ()) -> Iterator[tuple[str, Stored]]:
    """Random weights. Magnitudes are those of a network at its initialisation; norms are ones, biases zeros."""
    generator = torch.Generator(device).manual_seed(0)
    deep = (2 * config.n_layers) ** -0.5
    for name, place in places(shard_of(config)):
        value = 0.0 if name.endswith(".bias") else 1.0
        tensor = torch.full(place.shape, value, dtype=getattr(torch, config.dtype), device=device)
        if len(place.shape) > 1:
            gain = deep if name.endswith(("wo.weight", "w2.weight")) else 1.0
            width = 1 if name == EMBEDDINGS else place.shape[1]
            tensor.normal_(0.0, gain * width**-0.5, generator=generator)
        if name not in skip:
            yield name, Stored(tensor)


def checkpoint(config: ModelConfig, device: torch.device) -> Checkpoint:
    return Checkpoint(config, "half", partial(tensors, config, device))


def save(config: ModelConfig, device: torch.device, directory: Path) -> None:
    """Write a checkpoint in Mistral's native format, which vLLM reads too; all layers have the same window."""
    (directory / "params.json").write_text(json.dumps(_params(config)))
    found = {_native(name): stored.values.cpu() for name, stored in tensors(config, device)}
    save_file(found, directory / "consolidated.safetensors")


def _params(config: ModelConfig) -> dict[str, object]:
    names = ("dim", "n_layers", "n_heads", "n_kv_heads", "head_dim", "hidden_dim", "vocab_size", "norm_eps", "dtype")
    params = {name: getattr(config, name) for name in (*names, "rope_theta")}
    params |= {"sliding_window": config.windows[0], "max_position_embeddings": config.max_position}
    if config.latent:
        params |= {key: getattr(config.latent, key) for key in KEYS}
    if heat := config.query_temperature:
        params["llama_4_scaling"] = {"original_max_position_embeddings": heat.original_max_position, "beta": heat.beta}
    if audio := config.audio:
        params["multimodal"] = {"whisper_model_args": _whisper(audio)}
    if config.n_experts:
        params["moe"] = {key: getattr(config, name) for key, name in EXPERTS.items()} | dict.fromkeys(EXPERT_GROUPS, 1)
    return params


def _native(name: str) -> str:
    """The name of a weight in files since Mistral Large 3, the only one that vLLM knows."""
    ends = {"in": "0", "out": "2"}
    name = re.sub(r"feed_forward\.(gate|experts|shared_experts)\.", r"\1.", name)
    return re.sub(
        r"vision_language_adapter\.w_(in|out)",
        lambda found: f"mm_whisper_embeddings.audio_language_projection.{ends[found[1]]}",
        name,
    )


def _whisper(audio: AudioConfig) -> dict[str, object]:
    names = ("dim", "n_layers", "n_heads", "hidden_dim", "norm_eps")
    encoder = {name: getattr(audio, name) for name in names} | {"max_source_positions": audio.n_positions}
    encoder |= {"use_biases": True, "causal": False, "audio_encoding_args": SPECTRUM | MEL}
    return {"encoder_args": encoder, "downsample_args": {"downsample_factor": audio.group}}


def save_tokenizer(directory: Path) -> None:
    """Write a `tekken.json` of version 7 with the tokens of audio, from the vocabulary that mistral-common ships."""
    content: dict[str, Any] = json.loads((files("mistral_common") / "data" / "tekken_240911.json").read_text())
    del content["image"]
    names = {rank: f"<SPECIAL_{rank}>" for rank in range(content["config"]["default_num_special_tokens"])}
    names |= dict(enumerate(OLD_SPECIAL_TOKENS)) | AUDIO_TOKENS
    content["special_tokens"] = [{"rank": rank, "token_str": name, "is_control": True} for rank, name in names.items()]
    content["config"] |= {"version": "v7"}
    content["audio"] = SPECTRUM | {"chunk_length_s": 30.0, "audio_encoding_config": MEL}
    (directory / "tekken.json").write_text(json.dumps(content))


def random_adapter(config: ModelConfig, rank: int, device: torch.device) -> Lora:
    """An adapter of all projections of all layers, in bfloat16."""
    q, kv = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim

    def values(n_out: int, n_in: int, scale: float) -> Tensor:
        return torch.randn(n_out, n_in, device=device, dtype=torch.bfloat16).mul_(scale)

    def product(n_in: int, *outputs: int) -> LowRank:
        places = zip((sum(outputs[:i]) for i in range(len(outputs))), outputs, strict=True)
        parts = [LowRankPart(first, i * rank, values(n, rank, 1 / 16)) for i, (first, n) in enumerate(places)]
        return LowRank(values(len(outputs) * rank, n_in, n_in**-0.5), tuple(parts))

    dim, hidden = config.dim, config.hidden_dim
    return Lora(
        tuple(
            {"wqkv": product(dim, q, kv, kv), "wo": product(q, dim), "w13": product(dim, hidden, hidden)}
            | {"w2": product(hidden, dim)}
            for _ in range(config.n_layers)
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--audio", action="store_true")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    save(VOXTRAL if args.audio else LATENT, torch.device("cpu"), args.folder)
    if args.audio:
        save_tokenizer(args.folder)


if __name__ == "__main__":
    main()
