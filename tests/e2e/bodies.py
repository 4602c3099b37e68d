"""Requests of all kinds to a real model, and what their answers say."""

from collections.abc import Iterable
from typing import Any

from tests.gathered import gathered

COMPLETIONS, CHAT, RESPONSES, MESSAGES = "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"
N = 64
GREEDY, SEEDED = {"temperature": 0}, {"temperature": 0.9, "seed": 7}
STORY = {"prompt": "Once upon a time, in a small village, there", "max_tokens": N}
TALK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Describe a person, then a village."}],
    "max_tokens": N,
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "minLength": 30, "maxLength": 60}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
FORM = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
TOOL = {"name": "note", "parameters": PERSON}
COUNTING = {"repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.4}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "scored": (COMPLETIONS, STORY | SEEDED | {"n": 2, "logprobs": 3, "echo": True, "return_token_ids": True}),
    "penalties": (COMPLETIONS, STORY | SEEDED | COUNTING | {"logprobs": 1}),
    "greedy, without a seed": (COMPLETIONS, STORY | GREEDY | {"logprobs": 1, "min_tokens": N}),
    "drafts": (COMPLETIONS, {"prompt": "red green blue " * 8, "max_tokens": N, "prompt_lookup_num_tokens": 8} | SEEDED),
    "stop string": (COMPLETIONS, {"prompt": "Count: one, two, three,", "max_tokens": N, "stop": [", , "]} | GREEDY),
    "regex": (
        COMPLETIONS,
        {"prompt": "Go", "max_tokens": 99, "structured_outputs": {"regex": "([a-z]{3} ){20}"}} | SEEDED,
    ),
    "schema": (CHAT, TALK | SEEDED | {"response_format": FORM, "n": 2, "logprobs": True, "top_logprobs": 2}),
    "tool": (CHAT, TALK | SEEDED | {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}),
    "fim": ("/v1/fim/completions", {"prompt": "def one():", "max_tokens": N} | SEEDED),
    "messages": (MESSAGES, TALK | {"temperature": 0}),
    "responses": (RESPONSES, {"input": "Tell me a story.", "max_output_tokens": N} | SEEDED),
}
UNSALTED = (MESSAGES, RESPONSES)
CACHED = ("input_tokens", "cached_tokens", "cache_read_input_tokens")
Said = dict[tuple[Any, ...], Any]


def said(path: str, events: Iterable[dict[str, Any]]) -> Said:
    """All that was said, but for what an earlier run has left in the cache."""
    return {key: value for key, value in gathered(events).items() if path not in UNSALTED or key[-1] not in CACHED}
