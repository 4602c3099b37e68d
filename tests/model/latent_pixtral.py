"""A small random Mistral Small 4 with its image encoder, in the forms of pixtral.py. No form has a tokenizer."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from tests.model import pixtral
from tests.model.checkpoint import gguf_latent
from tests.model.network.latent_models import mistral3, native_params, native_tensors, text_of


@cache
def build() -> Any:
    return mistral3({**pixtral.VISION, "patch_size": 14, "image_size": 140})


def save_hf(directory: Path) -> Path:
    build().save_pretrained(directory)
    return directory


def save_native(directory: Path) -> Path:
    model = build()
    vision = pixtral.native_vision(model.config.to_dict())
    params = native_params(model.config.text_config, vision_encoder=vision)
    (directory / "params.json").write_text(json.dumps(params))
    tensors = native_tensors(text_of(model)) | pixtral.native_encoder(model)
    save_file(tensors, directory / "consolidated.safetensors")
    return directory


def save_gguf(directory: Path) -> Path:
    """Two files; the result is that of the text."""
    pixtral.save_gguf_encoder(build(), directory / "mmproj-model-F32.gguf")
    return gguf_latent.save(text_of(build()), directory / "model.gguf", "mistral4")
