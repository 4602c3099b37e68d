"""Sizes of latent attention, whose keys have the same names in `config.json` and in `params.json`."""

from collections.abc import Mapping
from typing import Any

from model.checkpoint.configs.fields import optional_size, size
from model.config.latent import LatentConfig
from model.config.model import RopeScaling
from model.errors import ModelError, short

KEYS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def read_latent(raw: Mapping[str, Any], file: str, scaling: RopeScaling | None = None) -> LatentConfig | None:
    """Read the sizes; None if all keys are null, 0 or not there.

    `mscale` is what YaRN's `mscale_all_dim` asks for, m squared with m = 1 + 0.1 mscale_all_dim ln(factor). Published
    implementations disagree on whether it counts where mscale and mscale_all_dim are equal, as in Mistral Small 4. It
    was trained without it: the native file of the same model says `apply_scale: false`.
    """
    found = {key: raw[key] for key in KEYS if raw.get(key) is not None}
    if not any(found.values()):
        return None
    mscale = 1.0 if scaling is None else scaling.stretched(scaling.mscale_all_dim) ** 2
    return LatentConfig(
        q_lora_rank=optional_size(found, "q_lora_rank", file) if found.get("q_lora_rank") else None,
        **{key: size(found, key, file) for key in KEYS[1:]},
        mscale=mscale,
        scaled=scaling is not None and scaling.mscale != scaling.mscale_all_dim,
    )


def check_head_dim(latent: LatentConfig, head_dim: int | None, file: str) -> None:
    """Raise ModelError for a head_dim that is not the sum of its parts."""
    if head_dim not in (None, latent.head_dim):
        raise ModelError(
            f"{file} has head_dim {short(head_dim)}, but qk_nope_head_dim and qk_rope_head_dim are "
            f"{latent.qk_nope_head_dim} and {latent.qk_rope_head_dim}"
        )
