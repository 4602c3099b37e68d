"""Fields of OpenAI and of other servers that have no effect here, with the values that are accepted.

These values, and null, describe what this server does. An empty tuple: null only.
"""

from collections.abc import Mapping
from typing import Any

from service.schema.fields import CACHED, ModelBody, only

HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "store": (False,),  # OpenAI
    "guardrails": ([],),  # Mistral
    "transforms": ([],),  # OpenRouter
    # vLLM
    **dict.fromkeys(("use_beam_search", "early_stopping", "return_tokens_as_token_ids"), (False,)),
    **dict.fromkeys(("skip_special_tokens", "spaces_between_special_tokens"), (True,)),
    **dict.fromkeys(("guided_whitespace_pattern", "kv_transfer_params", "vllm_xargs"), ()),
    "length_penalty": (1, 1.0),
    "truncation_side": ("left",),
    "logits_processors": ([],),
    "guided_decoding_backend": ("auto", "guidance"),
    # llama.cpp
    **dict.fromkeys(("return_tokens", "timings_per_token", "post_sampling_probs"), (False,)),
    **dict.fromkeys(("mirostat", "min_keep", "n_keep", "n_indent"), (0,)),
    **dict.fromkeys(("dynatemp_range", "dry_multiplier", "xtc_probability"), (0, 0.0)),
    **dict.fromkeys(("mirostat_eta", "xtc_threshold"), (0.1,)),
    **dict.fromkeys(("typical_p", "dynatemp_exponent"), (1, 1.0)),
    **dict.fromkeys(("repeat_last_n", "dry_penalty_last_n", "id_slot"), (-1,)),
    "cache_prompt": (True,),
    "mirostat_tau": (5, 5.0),
    "dry_base": (1.75,),
    "dry_allowed_length": (2,),
    "top_n_sigma": (-1, -1.0),
    "t_max_predict_ms": (0, -1),
    "grammar": ("",),
    "lora": ([],),
}
HARMLESS_COMPLETION: Mapping[str, tuple[Any, ...]] = {**HARMLESS, "add_special_tokens": (True,)}
HARMLESS_CHAT: Mapping[str, tuple[Any, ...]] = {
    **HARMLESS,
    **CACHED,
    **dict.fromkeys(("audio", "moderation", "web_search_options", "mm_processor_kwargs", "chat_template"), ()),
    **dict.fromkeys(("functions", "documents"), ([],)),
    **dict.fromkeys(("echo", "add_special_tokens"), (False,)),
    "modalities": (["text"],),
    "function_call": ("none",),
    "prompt_cache_retention": ("in_memory", "24h"),
    "verbosity": ("medium",),
    "best_of": (1,),
}
NOTICED_CHAT = only(**ModelBody.noticed, verbosity=("low", "high"), store=(True,), prediction=())
"""Fields that pass with these values too, or with any if they are declared: the header of ignored fields names them."""
