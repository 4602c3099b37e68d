"""Small random models of text and images: as directories, in Hugging Face's form and in Mistral's own, and as GGUF.

All forms of a kind have the same weights, the same token ids and the same chat format. Nothing here uses our reading.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from gguf import MODEL_ARCH, GGMLQuantizationType, GGUFWriter, TokenType, get_tensor_name_map
from gguf.quants import quantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor

from tests.model.checkpoint.native_files import half_to_adjacent, native_name, native_params
from tests.model.tokenizers.tekken_files import SPECIAL, write_tekken

NAMES = SPECIAL["v7"]
"""The control tokens by id; then follow the 256 bytes."""
VOCAB = len(NAMES) + 256
IMG, IMG_BREAK, IMG_END = (NAMES.index(name) for name in ("[IMG]", "[IMG_BREAK]", "[IMG_END]"))
TEXT: Mapping[str, Any] = {
    "model_type": "mistral",
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e6,
    "sliding_window": None,
    "initializer_range": 0.2,
    "pad_token_id": None,
}
VISION: Mapping[str, Any] = {
    "model_type": "pixtral",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "head_dim": 16,
    "hidden_act": "silu",
    "rope_theta": 10_000.0,
    "initializer_range": 0.2,
}
ENCODER = ("vision_tower.", "multi_modal_projector.")
"""Prefixes of weights of the encoder in transformers."""
TEMPLATE = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'system' %}
        {{- '[SYSTEM_PROMPT]' + message['content'] + '[/SYSTEM_PROMPT]' }}
    {%- elif message['role'] == 'user' %}
        {{- '[INST]' }}
        {%- if message['content'] is string %}
            {{- message['content'] }}
        {%- else %}
            {%- for block in message['content'] %}
                {%- if block['type'] == 'text' %}
                    {{- block['text'] }}
                {%- elif block['type'] in ['image', 'image_url'] %}
                    {{- '[IMG]' }}
                {%- else %}
                    {{- raise_exception('Only text and image blocks are supported in message content!') }}
                {%- endif %}
            {%- endfor %}
        {%- endif %}
        {{- '[/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- message['content'] + eos_token }}
    {%- else %}
        {{- raise_exception('Only user, system and assistant roles are supported!') }}
    {%- endif %}
{%- endfor %}
"""
"""The format of a `tekken.json` of version 7, without tools."""


def raw(pixels: Tensor) -> bytes:
    """Pixels as the encoder reads them."""
    return pixels.contiguous().numpy().tobytes()


def mistral3(**changes: Any) -> Any:
    """As Mistral Small 3.1: patches of 14 pixels, a norm and a merge of 2 x 2 patches before the projections.

    `changes` are of the encoder.
    """
    vision = {**VISION, "patch_size": 14, "image_size": 140, **changes}
    config = transformers.Mistral3Config(
        text_config={**TEXT},
        vision_config=vision,
        image_token_index=IMG,
        multimodal_projector_bias=False,
        spatial_merge_size=2,
        tie_word_embeddings=False,
    )
    return transformers.Mistral3ForConditionalGeneration(config)


def llava() -> Any:
    """As Pixtral 12B: patches of 16 pixels, each a token, and projections with biases."""
    vision = {**VISION, "patch_size": 16, "image_size": 128}
    config = transformers.LlavaConfig(
        text_config={**TEXT},
        vision_config=vision,
        image_token_index=IMG,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        multimodal_projector_bias=True,
        tie_word_embeddings=False,
    )
    return transformers.LlavaForConditionalGeneration(config)


KINDS = {"mistral3": mistral3, "llava": llava}


@cache
def build(kind: str) -> Any:
    """The model of transformers, in float32. Its norms and biases are random too."""
    torch.manual_seed(1)
    model = KINDS[kind]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def save_hf(kind: str, directory: Path) -> Path:
    """Write a model of `kind` as transformers does, with `tokenizer.json` and a chat template."""
    directory.mkdir(parents=True, exist_ok=True)
    build(kind).save_pretrained(directory)
    _tokenizer().save(str(directory / "tokenizer.json"))
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(special))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": NAMES.index("</s>")}))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory


def save_native(kind: str, directory: Path) -> Path:
    """Write the same model as Mistral does: `params.json`, `consolidated.safetensors` and `tekken.json`."""
    directory.mkdir(parents=True, exist_ok=True)
    params = _native_params(kind)
    (directory / "params.json").write_text(json.dumps(params))
    save_file(native_tensors(kind), directory / "consolidated.safetensors")
    vision = params["vision_encoder"]
    image = {"image_patch_size": vision["patch_size"], "max_image_size": vision["image_size"]}
    image["spatial_merge_size"] = vision.get("spatial_merge_size", 1)
    write_tekken(directory, "v7", size=256, n_special=len(NAMES), multimodal=image)
    return directory


def save_gguf(kind: str, directory: Path, encoder: str = "F32", text: str = "F32") -> Path:
    """Write the same model as llama.cpp's converter does: text and encoder in two files, their matrices in these kinds.

    The result is the file of the text.
    """
    directory.mkdir(parents=True, exist_ok=True)
    save_gguf_encoder(build(kind), directory / f"mmproj-model-{encoder}.gguf", encoder)
    source = directory / "model.gguf"
    writer = GGUFWriter(source, "llama")
    _add_text_metadata(writer)
    names = get_tensor_name_map(MODEL_ARCH.LLAMA, TEXT["num_hidden_layers"])
    for name, tensor in _adjacent(build(kind)).items():
        if (inner := name.removeprefix("model.").replace("language_model.", "model.")).startswith(
            ("model.", "lm_head")
        ):
            _add_tensor(writer, names.get_name(inner, try_suffixes=(".weight",)), tensor, text)
    _write(writer)
    return source


def save_gguf_encoder(model: Any, path: Path, numbers: str = "F32") -> None:
    """Write the encoder of a model of transformers, whose heads have 16 values."""
    config = model.config
    vision = config.vision_config
    writer = GGUFWriter(path, "clip")
    writer.add_type("mmproj")
    writer.add_clip_has_vision_encoder(True)
    writer.add_clip_projector_type("pixtral")
    writer.add_vision_projection_dim(config.text_config.hidden_size)
    writer.add_vision_image_size(vision.image_size)
    writer.add_vision_patch_size(vision.patch_size)
    writer.add_vision_embedding_length(vision.hidden_size)
    writer.add_vision_feed_forward_length(vision.intermediate_size)
    writer.add_vision_block_count(vision.num_hidden_layers)
    writer.add_vision_head_count(vision.num_attention_heads)
    writer.add_vision_attention_layernorm_eps(1e-5)
    writer.add_vision_image_mean([0.48145466, 0.4578275, 0.40821073])
    writer.add_vision_image_std([0.26862954, 0.26130258, 0.27577711])
    writer.add_vision_use_silu(True)
    if config.model_type == "mistral3":
        writer.add_vision_spatial_merge_size(2)
    names = get_tensor_name_map(MODEL_ARCH.MMPROJ, 24)  # it numbers the projections as if they were layers
    for name, tensor in _adjacent(model).items():
        if (inner := name.removeprefix("model.")).startswith(ENCODER):
            _add_tensor(writer, names.get_name(inner, try_suffixes=(".weight", ".bias")), tensor, numbers)
    embeddings = model.get_input_embeddings().weight.detach().numpy()
    writer.add_tensor("v.token_embd.img_break", embeddings[IMG_BREAK])
    _write(writer)


def _adjacent(model: Any) -> dict[str, Tensor]:
    """All weights under the names of transformers; as in the converter, rows of q and k of a pair are adjacent."""
    return {
        name: half_to_adjacent(tensor, 16).contiguous() if name.endswith(("q_proj.weight", "k_proj.weight")) else tensor
        for name, tensor in model.state_dict().items()
    }


def _add_tensor(writer: GGUFWriter, name: str | None, tensor: Tensor, numbers: str) -> None:
    """The converter keeps vectors in float32 and a convolution in floats."""
    assert name is not None
    if tensor.ndim == 1 or numbers == "F32":
        writer.add_tensor(name, tensor.numpy())
    elif tensor.ndim > 2:
        writer.add_tensor(name, tensor.numpy().astype(np.float16))
    else:
        kind = GGMLQuantizationType[numbers]
        writer.add_tensor(name, quantize(tensor.numpy(), kind), raw_dtype=kind)


def _add_text_metadata(writer: GGUFWriter) -> None:
    writer.add_block_count(TEXT["num_hidden_layers"])
    writer.add_context_length(TEXT["max_position_embeddings"])
    writer.add_embedding_length(TEXT["hidden_size"])
    writer.add_feed_forward_length(TEXT["intermediate_size"])
    writer.add_head_count(TEXT["num_attention_heads"])
    writer.add_head_count_kv(TEXT["num_key_value_heads"])
    writer.add_key_length(TEXT["head_dim"])
    writer.add_value_length(TEXT["head_dim"])
    writer.add_layer_norm_rms_eps(TEXT["rms_norm_eps"])
    writer.add_rope_freq_base(TEXT["rope_theta"])
    writer.add_rope_dimension_count(TEXT["head_dim"])
    vocab = sorted(_tokenizer().get_vocab().items(), key=lambda item: item[1])
    vocab[-1] = ("ab", VOCAB - 1)  # a file must have a merge; this was the last of the bytes, which no text has
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([name for name, _ in vocab])
    writer.add_token_types([TokenType.CONTROL if name in NAMES else TokenType.NORMAL for name, _ in vocab])
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(NAMES.index("<s>"))
    writer.add_eos_token_id(NAMES.index("</s>"))
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)


def _write(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def native_tensors(kind: str) -> dict[str, Tensor]:
    """All weights of a model under Mistral's names; rows of q and k of a pair are adjacent."""
    return _native(build(kind).state_dict())


def native_encoder(model: Any) -> dict[str, Tensor]:
    """The weights of the encoder of a model of transformers, as `native_tensors`."""
    return _native({k: v for k, v in model.state_dict().items() if k.removeprefix("model.").startswith(ENCODER)})


def _native(given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found = {}
    for name, tensor in given.items():
        known = _native_name(name)
        rotated = known.endswith((".wq.weight", ".wk.weight"))
        found[known] = half_to_adjacent(tensor, 16).contiguous() if rotated else tensor
    return found


_BLOCK = {"q_proj": "wq", "k_proj": "wk", "v_proj": "wv", "o_proj": "wo"}
_BLOCK |= {"gate_proj": "w1", "down_proj": "w2", "up_proj": "w3"}
_ADAPTER = {"linear_1": "vision_language_adapter.w_in", "linear_2": "vision_language_adapter.w_out"}
_ADAPTER |= {"norm": "pre_mm_projector_norm", "patch_merger.merging_layer": "patch_merger.merging_layer"}


def _native_name(name: str) -> str:
    """Mistral's name of a weight, from that of transformers 5."""
    name = name.removeprefix("model.")
    if name.startswith("vision_tower."):
        parts = name.removeprefix("vision_tower.").split(".")
        return ".".join(("vision_encoder", *(_BLOCK.get(part, part) for part in parts)))
    if name.startswith("multi_modal_projector."):
        stem, _, leaf = name.removeprefix("multi_modal_projector.").rpartition(".")
        return f"{_ADAPTER[stem]}.{leaf}"
    return native_name(name if name.startswith("lm_head") else f"model.{name.removeprefix('language_model.')}")


def _native_params(kind: str) -> dict[str, Any]:
    config = build(kind).config.to_dict()
    text = native_params({**config["text_config"], "tie_word_embeddings": False})
    return {**{key: value for key, value in text.items() if value is not None}, "vision_encoder": native_vision(config)}


def native_vision(config: Mapping[str, Any]) -> dict[str, Any]:
    """`vision_encoder` of params.json, from a config.json."""
    theirs = config["vision_config"]
    vision = {
        "image_token_id": IMG,
        "image_break_token_id": IMG_BREAK,
        "image_end_token_id": IMG_END,
        "hidden_size": theirs["hidden_size"],
        "intermediate_size": theirs["intermediate_size"],
        "num_hidden_layers": theirs["num_hidden_layers"],
        "num_attention_heads": theirs["num_attention_heads"],
        "num_channels": 3,
        "image_size": theirs["image_size"],
        "patch_size": theirs["patch_size"],
        "rope_theta": 10_000.0,
        "adapter_bias": config["multimodal_projector_bias"],
    }
    if config["model_type"] == "mistral3":
        vision |= {"max_image_size": theirs["image_size"], "mm_projector_id": "patch_merge", "spatial_merge_size": 2}
        vision |= {"add_pre_mm_projector_layer_norm": True}
    return vision


def _tokenizer() -> Tokenizer:
    """Bytes are tokens, without merges, with the ids of `tekken.json`."""
    alphabet = {chr(byte): byte for byte in (*range(33, 127), *range(161, 173), *range(174, 256))}
    others = [byte for byte in range(256) if byte not in alphabet.values()]
    alphabet |= {chr(256 + index): byte for index, byte in enumerate(others)}
    vocab = {name: token for token, name in enumerate(NAMES)}
    vocab |= {char: len(NAMES) + byte for char, byte in alphabet.items()}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in NAMES])
    begin = [("<s>", NAMES.index("<s>"))]
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=begin)
    return made
