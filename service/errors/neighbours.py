"""Names that other endpoints and other servers have for a field here."""

from collections.abc import Collection, Mapping

LENGTH = ("max_tokens", "max_output_tokens")
CONVERSATION = ("messages", "input", "prompt")
FORMAT = ("response_format", "text.format", "output_config.format")
MEANINGS: Mapping[str, tuple[str, ...]] = {
    "stop": ("stop_sequences",),
    "stop_sequences": ("stop",),
    "stopping_strings": ("stop", "stop_sequences"),
    **dict.fromkeys(("max_tokens", "max_output_tokens", "max_completion_tokens"), LENGTH),
    **dict.fromkeys(("max_new_tokens", "max_tokens_to_sample", "max_length", "n_predict", "num_predict"), LENGTH),
    **dict.fromkeys(("messages", "input", "inputs", "prompt", "contents"), CONVERSATION),
    "text": ("prompt",),
    "texts": ("input",),
    "system": ("instructions",),
    "system_prompt": ("system", "instructions"),
    "instructions": ("system",),
    "random_seed": ("seed",),
    "user": ("metadata.user_id",),
    "reasoning_effort": ("reasoning.effort", "output_config.effort"),
    "reasoning": ("reasoning_effort",),
    "thinking": ("reasoning_effort", "reasoning.effort"),
    "enable_thinking": ("chat_template_kwargs.enable_thinking",),
    "budget_tokens": ("thinking_token_budget", "thinking.budget_tokens"),
    "parameters": ("input_schema",),
    "input_schema": ("parameters",),
    **dict.fromkeys(("response_format", "output_config", "guided_schema", "format"), FORMAT),
    "add_bos": ("add_special_tokens",),
    "ids": ("tokens",),
    "token_ids": ("tokens",),
}
"""A name -> the places that mean the same, of which a body has at most one or prefers the first."""


def elsewhere(name: str, known: Collection[str]) -> str | None:
    """The place in a body with the `known` fields that has the meaning of a name from elsewhere."""
    return next((place for place in MEANINGS.get(name, ()) if place.partition(".")[0] in known), None)
