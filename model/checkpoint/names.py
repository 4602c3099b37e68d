"""Names of weights: what Hugging Face and GGUF call them, as Mistral's native names, which the network uses."""

import re
from collections.abc import Iterable, Iterator, Sequence

from model.errors import ModelError, short

Names = Sequence[tuple[re.Pattern[str], str]]
"""Patterns of one format's names, each with the native name as a template for `re.Match.expand`."""


def _names(prefix: str, pairs: Iterable[tuple[str, str]], own: str = "layers") -> Names:
    """Pair the names; in a layer, "L." stands for `prefix`, or `own`, and the number of the layer."""
    return tuple(
        (re.compile(theirs.replace("L.", prefix)), ours.replace("L.", rf"{own}.\1.")) for theirs, ours in pairs
    )


def _projections(theirs: str, ours: str) -> Iterator[tuple[str, str]]:
    """Pair the names of the matrices of a feed-forward block: "@" stands for gate, down and up, for w1, w2 and w3."""
    projections = (("gate", "w1"), ("down", "w2"), ("up", "w3"))
    return ((theirs.replace("@", their), ours.replace("@", own)) for their, own in projections)


HUGGING_FACE = _names(
    r"model\.layers\.(\d+)\.",
    (
        (r"model\.embed_tokens\.weight", "tok_embeddings.weight"),
        (r"model\.norm\.weight", "norm.weight"),
        (r"lm_head\.weight", "output.weight"),
        (r"L.input_layernorm\.weight", "L.attention_norm.weight"),
        (r"L.post_attention_layernorm\.weight", "L.ffn_norm.weight"),
        (r"L.self_attn\.([qkvo])_proj\.weight", r"L.attention.w\2.weight"),
        (r"L.self_attn\.(q_a|q_b|kv_a|kv_b)_proj((_with_mqa)?\.weight)", r"L.attention.w\2\3"),
        (r"L.self_attn\.(q|kv)_a_layernorm\.weight", r"L.attention.\2_a_norm.weight"),
        *_projections(r"L.mlp\.@_proj\.weight", "L.feed_forward.@.weight"),
        (r"L.block_sparse_moe\.gate\.weight", "L.feed_forward.gate.weight"),
        (r"L.block_sparse_moe\.experts\.(\d+)\.(w[123])\.weight", r"L.feed_forward.experts.\2.\3.weight"),
        (r"L.mlp\.gate\.weight", "L.feed_forward.gate.weight"),
        *_projections(r"L.mlp\.shared_experts\.@_proj\.weight", "L.feed_forward.shared_experts.@.weight"),
        *_projections(r"L.mlp\.experts\.(\d+)\.@_proj\.weight", r"L.feed_forward.experts.\2.@.weight"),
        (r"L.mlp\.experts\.gate_up_proj", "L.feed_forward.experts.*.w13.weight"),
        (r"L.mlp\.experts\.down_proj", "L.feed_forward.experts.*.w2.weight"),
    ),
)
HUGGING_FACE_VISION = _names(
    r"(?:model\.)?vision_tower\.transformer\.layers\.(\d+)\.",
    (
        (r"(?:model\.)?vision_tower\.((patch_conv|ln_pre)\.weight)", r"vision_encoder.\1"),
        (r"L.((attention|ffn)_norm\.weight)", r"L.\2"),
        (r"L.attention\.([qkvo])_proj\.weight", r"L.attention.w\2.weight"),
        *_projections(r"L.feed_forward\.@_proj\.weight", "L.feed_forward.@.weight"),
        (r"(?:model\.)?multi_modal_projector\.norm\.weight", "pre_mm_projector_norm.weight"),
        (r"(?:model\.)?multi_modal_projector\.(patch_merger\.merging_layer\.weight)", r"\1"),
        (r"(?:model\.)?multi_modal_projector\.linear_1\.(weight|bias)", r"vision_language_adapter.w_in.\1"),
        (r"(?:model\.)?multi_modal_projector\.linear_2\.(weight|bias)", r"vision_language_adapter.w_out.\1"),
    ),
    "vision_encoder.transformer.layers",
)
"""Weights of images; newer files begin them with "model."."""
WHISPER = "mm_whisper_embeddings.whisper_encoder"
HUGGING_FACE_AUDIO = _names(
    r"(?:model\.)?audio_tower\.layers\.(\d+)\.",
    (
        (r"(?:model\.)?audio_tower\.conv1\.(weight|bias)", rf"{WHISPER}.conv_layers.0.\1"),
        (r"(?:model\.)?audio_tower\.conv2\.(weight|bias)", rf"{WHISPER}.conv_layers.1.\1"),
        (r"(?:model\.)?audio_tower\.embed_positions\.weight", f"{WHISPER}.positions"),
        (r"(?:model\.)?audio_tower\.layer_norm\.(weight|bias)", rf"{WHISPER}.transformer.norm.\1"),
        (r"L.self_attn\.([qkv])_proj\.(weight|bias)", r"L.attention.w\2.\3"),
        (r"L.self_attn\.out_proj\.(weight|bias)", r"L.attention.wo.\2"),
        (r"L.self_attn_layer_norm\.(weight|bias)", r"L.attention_norm.\2"),
        (r"L.final_layer_norm\.(weight|bias)", r"L.ffn_norm.\2"),
        (r"L.fc([12])\.(weight|bias)", r"L.feed_forward.w\2.\3"),
        (r"mm_whisper_embeddings\.audio_language_projection\.0\.weight", "vision_language_adapter.w_in.weight"),
        (r"mm_whisper_embeddings\.audio_language_projection\.2\.weight", "vision_language_adapter.w_out.weight"),
    ),
    f"{WHISPER}.transformer.layers",
)
"""Weights of audio. Both kinds of encoders have one name for what joins them to the text model, as in transformers."""
NATIVE_VARIANTS = _names(
    r"layers\.(\d+)\.",
    (
        (r"L.((gate|experts\.\d+\.w[123]|shared_experts\.w[123])\.weight)", r"L.feed_forward.\2"),
        (r"L.block_sparse_moe\.gate\.weight", "L.feed_forward.gate.weight"),
        (r"L.block_sparse_moe\.(w[123])", r"L.feed_forward.experts.*.\2.weight"),
    ),
)
"""Native names of experts: those since Mistral Large 3, and those of the first Mixtral."""
GGUF = _names(
    r"blk\.(\d+)\.",
    (
        (r"token_embd\.weight", "tok_embeddings.weight"),
        (r"output_norm\.weight", "norm.weight"),
        (r"output\.weight", "output.weight"),
        (r"L.attn_norm\.weight", "L.attention_norm.weight"),
        (r"L.ffn_norm\.weight", "L.ffn_norm.weight"),
        (r"L.attn_([qkv])\.weight", r"L.attention.w\2.weight"),
        (r"L.attn_output\.weight", "L.attention.wo.weight"),
        (r"L.attn_(q_a|q_b|k_b|v_b|kv_b)\.weight", r"L.attention.w\2.weight"),
        (r"L.attn_kv_a_mqa\.weight", "L.attention.wkv_a_with_mqa.weight"),
        (r"L.attn_((?:q|kv)_a_norm)\.weight", r"L.attention.\2.weight"),
        *_projections(r"L.ffn_@_shexp\.weight", "L.feed_forward.shared_experts.@.weight"),
        (r"L.ffn_gate_up_exps\.weight", "L.feed_forward.experts.*.w13.weight"),
        *_projections(r"L.ffn_@\.weight", "L.feed_forward.@.weight"),
        (r"L.ffn_gate_inp\.weight", "L.feed_forward.gate.weight"),
        *_projections(r"L.ffn_@_exps\.weight", "L.feed_forward.experts.*.@.weight"),
        *_projections(r"L.ffn_@\.(\d+)\.weight", r"L.feed_forward.experts.\2.@.weight"),
    ),
)
"""A tensor that holds the matrices of all experts has a star for the number of an expert, here and in safetensors. In
GGUF files of before April 2024 each expert has a tensor of its own."""
GGUF_VISION = _names(
    r"v\.blk\.(\d+)\.",
    (
        (r"v\.patch_embd\.weight", "vision_encoder.patch_conv.weight"),
        (r"v\.pre_ln\.weight", "vision_encoder.ln_pre.weight"),
        (r"L.ln1\.weight", "L.attention_norm.weight"),
        (r"L.ln2\.weight", "L.ffn_norm.weight"),
        (r"L.attn_([qkv])\.weight", r"L.attention.w\2.weight"),
        (r"L.attn_out\.weight", "L.attention.wo.weight"),
        *_projections(r"L.ffn_@\.weight", "L.feed_forward.@.weight"),
        (r"mm\.input_norm\.weight", "pre_mm_projector_norm.weight"),
        (r"mm\.patch_merger\.weight", "patch_merger.merging_layer.weight"),
        (r"mm\.1\.(weight|bias)", r"vision_language_adapter.w_in.\1"),
        (r"mm\.2\.(weight|bias)", r"vision_language_adapter.w_out.\1"),
    ),
    "vision_encoder.transformer.layers",
)
"""Weights of images in a file of llama.cpp's for the projector `pixtral`."""

_NATIVE = re.compile(
    r"(tok_embeddings|norm|output)\.weight"
    r"|layers\.\d+\.((attention|ffn)_norm\.weight"
    r"|attention\.(w[qkvo]|wq_[ab]|wkv_b|wkv_a_with_mqa|(q|kv)_a_norm)\.weight"
    r"|feed_forward\.(gate|((experts\.\d+|shared_experts)\.)?w[123])\.weight)"
    r"|vision_encoder\.((patch_conv|ln_pre)\.weight"
    r"|transformer\.layers\.\d+\.((attention|ffn)_norm|attention\.w[qkvo]|feed_forward\.w[123])\.weight)"
    r"|vision_language_adapter\.w_(in|out)\.(weight|bias)"
    r"|(patch_merger\.merging_layer|pre_mm_projector_norm)\.weight"
    r"|mm_whisper_embeddings\.whisper_encoder\.(conv_layers\.[01]|transformer\.norm"
    r"|transformer\.layers\.\d+\.((attention|ffn)_norm|attention\.w[qkvo]|feed_forward\.w[12]))\.(weight|bias)"
)
_DERIVED = re.compile(r".*(rotary_emb|patch_positional_embedding)\.inv_freq|rope\.freqs")
_HEAD = re.compile(r"(lm_head|output)\.[a-z_]+")
_ENCODER = re.compile(
    r"((model\.)?(vision_tower|audio_tower|multi_modal_projector)"
    r"|vision_encoder|vision_language_adapter|patch_merger|pre_mm_projector_norm"
    r"|mm_whisper_embeddings\.(whisper_encoder|audio_language_projection))\..+"
)
_INNER = (
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.lm_head.", "lm_head."),
    ("mm_whisper_embeddings.tok_embeddings.", "tok_embeddings."),
)
"""Beginnings of names in a model with an encoder (`mistral3`, `llava`, `voxtral`) and those of its text model."""


def native_name(name: str, names: Names) -> str | None:
    """Return the native name of a weight, None if `names` have none."""
    matches = ((pattern.fullmatch(name), template) for pattern, template in names)
    return next((match.expand(template) for match, template in matches if match), None)


def text_name(name: str) -> str:
    """Return the name that the text model alone would have for a weight of a model of text and images."""
    prefixes = ((inner, own) for inner, own in _INNER if name.startswith(inner))
    return next((own + name.removeprefix(inner) for inner, own in prefixes), name)


def is_encoder(name: str) -> bool:
    """Return whether a weight in safetensors is of an encoder of images or audio, or joins it to the text model."""
    return _ENCODER.fullmatch(name) is not None


def is_head(name: str) -> bool:
    """Return whether a weight in safetensors is of the output head, in any format of its values."""
    return _HEAD.fullmatch(text_name(name)) is not None


def canonical_name(name: str) -> str | None:
    """Return the native name of a weight in safetensors; None for a derived one (inv_freq).

    Raises ModelError for a name that no supported family has.
    """
    if _DERIVED.fullmatch(name):
        return None
    own = text_name(name)
    names = (*HUGGING_FACE_VISION, *HUGGING_FACE_AUDIO) if is_encoder(name) else (*HUGGING_FACE, *NATIVE_VARIANTS)
    known = own if _NATIVE.fullmatch(own) else native_name(own, names)
    if known is None:
        raise ModelError(f"the checkpoint has a weight {short(name)}, which no supported model family has")
    return known
