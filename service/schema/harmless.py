"""Fields of OpenAI and of other servers that mean nothing here: each passes while it holds one of the values that
describe what happens anyway, or null. An empty tuple: null only.
"""

from collections.abc import Mapping
from typing import Any

HARMLESS: Mapping[str, tuple[Any, ...]] = {
    # OpenAI
    "store": (False,),
    "metadata": ({},),
    "service_tier": ("auto", "default"),
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
    "n_probs": (0,),
    "typical_p": (1, 1.0),
    "mirostat": (0,),
    "mirostat_tau": (5, 5.0),
    "mirostat_eta": (0.1,),
    "repeat_penalty": (1, 1.0),
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
    "json_schema": (),
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
    "modalities": (["text"],),
    "functions": ([],),
    "function_call": ("none",),
    "audio": (),
    "prediction": (),
    "moderation": (),
    "prompt_cache_options": ({}, {"mode": "implicit"}),
    "prompt_cache_retention": ("in_memory",),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "reasoning_format": ("none", "auto"),
    "include_reasoning": (True,),
    "mm_processor_kwargs": (),
    "echo": (False,),
    "add_special_tokens": (False,),
    "documents": ([],),
    "chat_template": (),
    "best_of": (1,),
}
HARMLESS_STRUCTURED: Mapping[str, tuple[Any, ...]] = {
    "disable_fallback": (False,),
    "disable_any_whitespace": (False,),
    "disable_additional_properties": (False,),
    "whitespace_pattern": (),
    "structural_tag": (),
}
HARMLESS_MESSAGE: Mapping[str, tuple[Any, ...]] = {
    "refusal": (),
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "reasoning": ("",),
    "reasoning_content": ("",),
    "thinking_blocks": ([],),
    "images": ([],),
    "provider_specific_fields": ({}, {"refusal": None}, {"citations": None, "thinking_blocks": None}),  # LiteLLM's
}
HARMLESS_STREAM_OPTION: Mapping[str, tuple[Any, ...]] = {"include_obfuscation": (False,)}
CACHE_HINTS = ({"type": "ephemeral"}, {"type": "ephemeral", "ttl": "5m"}, {"type": "ephemeral", "ttl": "1h"})
"""Prompts are cached without being told to."""
HARMLESS_TEXT_BLOCK: Mapping[str, tuple[Any, ...]] = {"cache_control": CACHE_HINTS, "citations": ([],)}
HARMLESS_OUTPUT_CONFIG: Mapping[str, tuple[Any, ...]] = {"effort": ()}
HARMLESS_CONVERSATION: Mapping[str, tuple[Any, ...]] = {
    "cache_control": CACHE_HINTS,
    "context_management": (),
    "mcp_servers": ([],),
    "speed": ("standard",),
    "thinking": ({"type": "disabled"},),
}
HARMLESS_TOOL_OFFER: Mapping[str, tuple[Any, ...]] = {
    "allowed_callers": (["direct"],),
    "cache_control": CACHE_HINTS,
    "defer_loading": (False,),
    "eager_input_streaming": (True,),
    "input_examples": ([],),
}
HARMLESS_TOOL_USE: Mapping[str, tuple[Any, ...]] = {
    "cache_control": CACHE_HINTS,
    "caller": ({"type": "direct"},),
    "toolset_name": (),
}
HARMLESS_TOOL_RESULT: Mapping[str, tuple[Any, ...]] = {"cache_control": CACHE_HINTS, "toolset_name": ()}
HARMLESS_MESSAGES: Mapping[str, tuple[Any, ...]] = {
    **HARMLESS_CONVERSATION,
    "container": (),
    "diagnostics": (),
    "inference_geo": (),
    "thread": (),
    "service_tier": ("auto", "standard_only"),
}
HARMLESS_INPUT_PART: Mapping[str, tuple[Any, ...]] = {"annotations": ([],), "logprobs": ([],)}
HARMLESS_INPUT_ITEM: Mapping[str, tuple[Any, ...]] = {
    "phase": ("final_answer",),
    "status": ("completed", "incomplete"),
}
HARMLESS_CALL_ITEM: Mapping[str, tuple[Any, ...]] = {
    "async": (False,),
    "async_": (False,),  # as the SDK dumps it
    "caller": ({"type": "direct"},),
    "namespace": (),
    "status": ("completed", "incomplete"),
}
HARMLESS_OUTPUT_ITEM: Mapping[str, tuple[Any, ...]] = HARMLESS_CALL_ITEM
HARMLESS_FUNCTION_TOOL: Mapping[str, tuple[Any, ...]] = {
    "allowed_callers": (["direct"],),
    "defer_loading": (False,),
    "output_schema": (),
}
HARMLESS_TEXT_CONFIG: Mapping[str, tuple[Any, ...]] = {"verbosity": ("medium",)}
HARMLESS_RESPONSES: Mapping[str, tuple[Any, ...]] = {
    "background": (False,),
    "context_management": (),
    "conversation": (),
    "include": ([],),
    "max_tool_calls": (),
    "metadata": ({},),
    "moderation": (),
    "previous_response_id": (),
    "prompt": (),
    "prompt_cache_retention": ("in_memory",),
    "prompt_cache_options": ({}, {"mode": "implicit"}),
    "reasoning": ({}, {"effort": None}, {"effort": "none"}, {"effort": None, "summary": None}),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "stream_options": ({}, {"include_obfuscation": False}),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
HARMLESS_EMBEDDINGS: Mapping[str, tuple[Any, ...]] = {
    "add_special_tokens": (True,),
    "embed_dtype": ("float32",),
    "endianness": ("little",),
    "normalize": (True,),
    "priority": (0,),
    "truncate_prompt_tokens": (),
}
HARMLESS_TEMPLATE: Mapping[str, tuple[Any, ...]] = {"chat_template": ()}
HARMLESS_TOKENIZE: Mapping[str, tuple[Any, ...]] = {**HARMLESS_TEMPLATE, "parse_special": (True,)}


def accepts(allowed: tuple[Any, ...], value: Any) -> bool:
    """Whether a harmless field may hold `value`; True is not 1 here."""
    return value is None or any(type(value) is type(other) and value == other for other in allowed)
