"""Fields of OpenAI and of other servers that have no effect here, with the values that are accepted.

These values, and null, describe what this server does. An empty tuple: null only.
"""

from collections.abc import Mapping
from typing import Any

from service.schema.fields import CACHED, ModelBody, only

HARMLESS: Mapping[str, tuple[Any, ...]] = {
    # OpenAI
    "store": (False,),
    # Mistral
    "guardrails": ([],),
    # OpenRouter
    "transforms": ([],),
    # vLLM
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "early_stopping": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "truncation_side": ("left",),
    "logits_processors": ([],),
    "guided_decoding_backend": ("auto", "guidance"),
    "guided_whitespace_pattern": (),
    "return_tokens_as_token_ids": (False,),
    "kv_transfer_params": (),
    "vllm_xargs": (),
    # llama.cpp
    "cache_prompt": (True,),
    "typical_p": (1, 1.0),
    "mirostat": (0,),
    "mirostat_tau": (5, 5.0),
    "mirostat_eta": (0.1,),
    "repeat_last_n": (-1,),
    "dynatemp_range": (0, 0.0),
    "dynatemp_exponent": (1, 1.0),
    "dry_multiplier": (0, 0.0),
    "dry_base": (1.75,),
    "dry_allowed_length": (2,),
    "dry_penalty_last_n": (-1,),
    "xtc_probability": (0, 0.0),
    "xtc_threshold": (0.1,),
    "top_n_sigma": (-1, -1.0),
    "min_keep": (0,),
    "n_keep": (0,),
    "n_indent": (0,),
    "t_max_predict_ms": (0, -1),
    "grammar": ("",),
    "id_slot": (-1,),
    "lora": ([],),
    "return_tokens": (False,),
    "timings_per_token": (False,),
    "post_sampling_probs": (False,),
}
HARMLESS_COMPLETION: Mapping[str, tuple[Any, ...]] = {
    **HARMLESS,
    "add_special_tokens": (True,),
}
HARMLESS_CHAT: Mapping[str, tuple[Any, ...]] = {
    **HARMLESS,
    **CACHED,
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("none",),
    "audio": (),
    "moderation": (),
    "prompt_cache_retention": ("in_memory", "24h"),
    "verbosity": ("medium",),
    "web_search_options": (),
    "mm_processor_kwargs": (),
    "echo": (False,),
    "add_special_tokens": (False,),
    "documents": ([],),
    "chat_template": (),
    "best_of": (1,),
}
NOTICED_CHAT = only(**ModelBody.noticed, verbosity=("low", "high"), store=(True,), prediction=())
"""Fields that pass with these values too, or with any if they are declared: the header of ignored fields names them."""
