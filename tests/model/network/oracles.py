"""Small random models of transformers, one for each kind of model that Noria serves.

Each has sizes at which everything that is special about it shows within LENGTH tokens: its window, the context before
YaRN, the steps of its query temperature.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers.models.llama import modeling_llama
from transformers.models.ministral import modeling_ministral

from tests.model.checkpoint.native_files import tensors_of

VOCAB, WINDOW, LENGTH, HEAD_DIM = 96, 11, 70, 16
TOKENS = [(11 * i + i * i) % VOCAB for i in range(LENGTH)]
SHAPE: Mapping[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": HEAD_DIM,
    "max_position_embeddings": 96,
    "initializer_range": 0.2,
    "attn_implementation": "eager",
    "pad_token_id": None,
}
YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 8.0, "original_max_position_embeddings": 12}
MEDIUM = {**YARN, "rope_theta": 20.0, "factor": 2.0, "original_max_position_embeddings": 48, "beta_fast": 4.0}
MEDIUM |= {"mscale": 1.0, "mscale_all_dim": 0.0, "llama_4_scaling_beta": 0.0}
"""The ramp is from pair 1.7 to pair 5.4, and from pair 0 with the usual beta_fast of 32."""
MINISTRAL3 = {**YARN, "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
MIXED = ["full_attention", "sliding_attention", "sliding_attention"]
ROPES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 4.0},
}
VISION = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 16,
    "patch_size": 8,
    "hidden_act": "silu",
}


def mistral(**changes: Any) -> Any:
    return transformers.MistralForCausalLM(transformers.MistralConfig(**{**SHAPE, "sliding_window": None, **changes}))


def ministral(**changes: Any) -> Any:
    config = transformers.MinistralConfig(**SHAPE, layer_types=MIXED, sliding_window=WINDOW, **changes)
    return transformers.MinistralForCausalLM(config)


def ministral3(**changes: Any) -> nn.Module:
    rope = {**MINISTRAL3, "llama_4_scaling_beta": 0.4}
    config = transformers.Ministral3Config(**{**SHAPE, "rope_parameters": rope, **changes})
    return transformers.Ministral3ForCausalLM(config)


def llama(**changes: Any) -> nn.Module:
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**{**SHAPE, **changes}))


def mixtral(window: int | None = None, n_experts: int = 4, n_used: int = 2, **changes: Any) -> Any:
    sizes = {**SHAPE, "num_local_experts": n_experts, "num_experts_per_tok": n_used, "sliding_window": window}
    return transformers.MixtralForCausalLM(transformers.MixtralConfig(**{**sizes, **changes}))


def mistral3() -> nn.Module:
    """Text and images; the text model is Ministral 3's. The outer default says that the head is tied; it is not."""
    rope = {**MINISTRAL3, "llama_4_scaling_beta": 0.4}
    text = {**SHAPE, "model_type": "ministral3", "rope_parameters": rope}
    config = transformers.Mistral3Config(
        text_config=text, vision_config={"model_type": "pixtral", **VISION}, tie_word_embeddings=False
    )
    return transformers.Mistral3ForConditionalGeneration(config)


def llava() -> nn.Module:
    """Text and images, as Pixtral 12B in Hugging Face's form."""
    text = {**SHAPE, "model_type": "mistral", "sliding_window": None}
    vision = {"model_type": "pixtral", **VISION}
    selection = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
    config = transformers.LlavaConfig(text_config=text, vision_config=vision, tie_word_embeddings=False, **selection)
    return transformers.LlavaForConditionalGeneration(config)


def ministral_with_two_ropes() -> Any:
    """No model of transformers' Mistral family has this: each layer gets the rotations of its own type."""
    model = ministral()
    model.config.rope_parameters = ROPES["sliding_attention"]
    rotary = {}
    for kind, parameters in ROPES.items():
        config = transformers.MinistralConfig(
            **SHAPE, layer_types=MIXED, sliding_window=WINDOW, rope_parameters=parameters
        )
        rotary[kind] = modeling_ministral.MinistralRotaryEmbedding(config)

    def own(kind: str) -> Callable[..., Any]:
        def replace(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
            rotations = rotary[kind](kwargs["hidden_states"], torch.arange(LENGTH)[None])
            return args, {**kwargs, "position_embeddings": rotations}

        return replace

    for layer, kind in zip(model.model.layers, MIXED, strict=True):
        layer.self_attn.register_forward_pre_hook(own(kind), with_kwargs=True)
    return model


class Partial(modeling_llama.LlamaForCausalLM):
    """Llama whose heads rotate the first half of their values, as GPT-NeoX's and StableLM's do."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        whole = modeling_llama.apply_rotary_pos_emb

        def first_half(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
            n = cos.shape[-1]
            rotated = whole(q[..., :n], k[..., :n], cos, sin, **options)
            return tuple(torch.cat((new, old[..., n:]), -1) for new, old in zip(rotated, (q, k), strict=True))  # type: ignore[return-value]

        modeling_llama.apply_rotary_pos_emb = first_half
        try:
            return super().forward(*args, **kwargs)
        finally:
            modeling_llama.apply_rotary_pos_emb = whole


def partial() -> nn.Module:
    model: Any = Partial(transformers.LlamaConfig(**SHAPE, rope_theta=100.0))
    pairs = torch.arange(0, HEAD_DIM // 2, 2) / (HEAD_DIM // 2)
    model.model.rotary_emb.inv_freq = 100.0**-pairs
    return model


KINDS: Mapping[str, Callable[[], nn.Module]] = {
    "mistral": lambda: mistral(sliding_window=WINDOW),
    "nemo": lambda: mistral(rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
    "medium": lambda: ministral3(rope_parameters=MEDIUM),
    "ministral": ministral,
    "ministral two ropes": ministral_with_two_ropes,
    "ministral3": ministral3,
    "ministral3 tied": lambda: ministral3(tie_word_embeddings=True),
    "mistral3": mistral3,
    "llava": llava,
    "llama": llama,
    "llama with a window": lambda: llama(sliding_window=WINDOW),
    "llama tied": lambda: llama(tie_word_embeddings=True),
    "llama 3": lambda: llama(rope_parameters={**LLAMA3, "original_max_position_embeddings": 24}),
    "partial": partial,
    "mixtral": mixtral,
    "mixtral windowed": lambda: mixtral(WINDOW, 5, 3),
}
NATIVE = (
    "mistral",
    "nemo",
    "medium",
    "ministral",
    "ministral3",
    "ministral3 tied",
    "llama",
    "mixtral",
    "mixtral windowed",
)
"""The kinds that Mistral's own format can say."""
CONFIG: Mapping[str, Mapping[str, Any]] = {
    "mistral3": {"tie_word_embeddings": True},
    "ministral two ropes": {"rope_parameters": ROPES},
    "partial": {"partial_rotary_factor": 0.5},
}
"""What save_pretrained does not write. The top level of mistral3 says by default that the head is tied."""


def build(kind: str) -> Any:
    torch.manual_seed(1)
    model = KINDS[kind]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # norms: not all ones
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def logprobs(model: nn.Module) -> Tensor:
    """Log probabilities [LENGTH, VOCAB] after each of TOKENS."""
    with torch.no_grad():
        return model(input_ids=torch.tensor([TOKENS])).logits[0].log_softmax(-1)


def save(kind: str, directory: Path) -> Tensor:
    """Write a random model of `kind` in Hugging Face's format; its log probabilities [LENGTH, VOCAB]."""
    model = build(kind)
    model.save_pretrained(directory)
    path = directory / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **CONFIG.get(kind, {})}))
    return logprobs(model)


def rename(directory: Path, new: Callable[[str], str]) -> None:
    """Write all tensors of a directory again, under other names."""
    tensors = {new(name): tensor for name, tensor in tensors_of(directory).items()}
    for path in directory.glob("*.safetensors"):
        path.unlink()
    save_file(tensors, directory / "model.safetensors")


Rename = Callable[[dict[str, Tensor], int], dict[str, Tensor]]


def first_mixtral(tensors: dict[str, Tensor], n_experts: int) -> dict[str, Tensor]:
    """The names of the first Mixtral release: all experts of a layer in one matrix, w2 transposed."""
    found = {}
    for name, tensor in tensors.items():
        if ".experts.0." in name:
            experts = [tensors[name.replace(".experts.0.", f".experts.{expert}.")] for expert in range(n_experts)]
            stacked = torch.cat([part.T if ".w2." in name else part for part in experts])
            found[name.replace("feed_forward.experts.0", "block_sparse_moe").removesuffix(".weight")] = stacked
        elif ".experts." not in name:
            found[name.replace("feed_forward.gate", "block_sparse_moe.gate")] = tensor
    return found


def since_large_3(tensors: dict[str, Tensor], n_experts: int) -> dict[str, Tensor]:
    """The names of releases since Mistral Large 3."""
    return {name.replace("feed_forward.", ""): tensor for name, tensor in tensors.items()}


def renamed(directory: Path, rename: Rename, n_experts: int = 4) -> Path:
    """A native directory whose tensors have other names."""
    path = directory / "consolidated.safetensors"
    tensors = rename(load_file(path), n_experts)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    return directory
