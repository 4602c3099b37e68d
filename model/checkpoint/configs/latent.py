"""Sizes of latent attention, whose keys have the same names in `config.json` and in `params.json`."""

from model.checkpoint.configs.fields import Fields
from model.config.latent import LatentConfig
from model.config.model import RopeScaling
from model.errors import ModelError, short

KEYS = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")


def read_latent(raw: Fields, scaling: RopeScaling | None) -> LatentConfig:
    """Read the sizes. Raises ModelError for a head_dim that is not the sum of its parts.

    `mscale` is what YaRN's `mscale_all_dim` asks for, m squared with m = 1 + 0.1 mscale_all_dim ln(factor). Published
    implementations disagree on whether it counts where mscale and mscale_all_dim are equal, as in Mistral Small 4. It
    was trained without it: the native file of the same model says `apply_scale: false`.
    """
    latent = LatentConfig(
        q_lora_rank=raw.size("q_lora_rank") if raw.get("q_lora_rank") else None,
        **{key: raw.size(key) for key in KEYS[1:]},
        mscale=1.0 if scaling is None else scaling.stretched(scaling.mscale_all_dim) ** 2,
        scaled=scaling is not None and scaling.mscale != scaling.mscale_all_dim,
    )
    if (head_dim := raw.optional_size("head_dim")) not in (None, latent.head_dim):
        raise ModelError(
            f"{raw.file} has head_dim {short(head_dim)}, but qk_nope_head_dim and qk_rope_head_dim are "
            f"{latent.qk_nope_head_dim} and {latent.qk_rope_head_dim}"
        )
    return latent
