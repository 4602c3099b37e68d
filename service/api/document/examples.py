"""One example, or more, of what each route is sent and what it answers: shown in the OpenAPI document.

Of an answer's examples the document makes its schema (`openapi.schema_of`): what is null there may be anything.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

Json = dict[str, Any]
MODEL = "smollm2-135m-instruct"
FINGERPRINT = "noria-0.1.0-int8-ab12cd34"
TIMINGS: Json = {
    "queue_ms": 0.4,
    "cache_n": 0,
    "prompt_n": 31,
    "prompt_ms": 41.2,
    "prompt_per_second": 752.4,
    "predicted_n": 2,
    "predicted_ms": 9.1,
    "predicted_per_second": 219.8,
}
USAGE: Json = {
    "prompt_tokens": 31,
    "completion_tokens": 2,
    "total_tokens": 33,
    "prompt_tokens_details": {"cached_tokens": 0},
}
HELLO = [{"role": "user", "content": "Say hello."}]
CARD: Json = {
    "id": MODEL,
    "object": "model",
    "created": 1760000000,
    "owned_by": "noria",
    "parent": None,
    "max_model_len": 8192,
    "window": None,
    "quantization": "int8",
    "adapters": [],
}


class Example(NamedTuple):
    answers: tuple[Json, ...] = ()
    request: Json | None = None
    streams: bool = False
    media_type: str = "application/json"


def _object(kind: str, **fields: Any) -> Json:
    head = {"object": kind, "created": 1760000000, "model": MODEL, "system_fingerprint": FINGERPRINT}
    return {"id": "cmpl-1b9d", **head, **fields, "usage": USAGE, "timings": TIMINGS}


COMPLETION = _object(
    "text_completion", choices=[{"index": 0, "text": " Paris.", "logprobs": None, "finish_reason": "stop"}]
)


def _chat(finish: str, **message: Any) -> Json:
    message = {"role": "assistant", **message, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return _object("chat.completion", choices=[choice])


ARGUMENTS = '{"city": "Paris"}'
CHAT = _chat("stop", content="Hello!")
FUNCTION = {"name": "weather", "arguments": ARGUMENTS}
CHAT_CALL = _chat(
    "tool_calls", content=None, tool_calls=[{"id": "call_1b9d", "type": "function", "function": FUNCTION}]
)
RESPONSE: Json = {
    "id": "resp_1b9d",
    "object": "response",
    "created_at": 1760000000,
    "completed_at": None,
    "status": "completed",
    "incomplete_details": None,
    "model": MODEL,
    "output": [
        {
            "type": "message",
            "id": "msg_1b9d",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Hello!", "annotations": [], "logprobs": []}],
        }
    ],
    "usage": {
        "input_tokens": 31,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 33,
    },
    "store": False,
    "temperature": 1.0,
    "top_p": 1.0,
    "timings": TIMINGS,
}
RESPONSE_CALL = RESPONSE | {
    "output": [
        {"type": "function_call", "id": "fc_1b9d", "call_id": "call_1b9d", "status": "completed", **FUNCTION},
    ]
}
MESSAGE: Json = {
    "id": "msg_1b9d",
    "type": "message",
    "role": "assistant",
    "model": MODEL,
    "content": [{"type": "text", "text": "Hello!"}],
    "stop_reason": "end_turn",
    "stop_sequence": None,
    "usage": {
        "input_tokens": 31,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 2,
    },
    "timings": TIMINGS,
}
MESSAGE_CALL = MESSAGE | {
    "content": [{"type": "tool_use", "id": "call_1b9d", "name": "weather", "input": {"city": "Paris"}}],
    "stop_reason": "tool_use",
}


def _embeddings(embedding: Any) -> Json:
    return {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": embedding}],
        "model": MODEL,
        "usage": {"prompt_tokens": 5, "total_tokens": 5},
        "timings": TIMINGS,
    }


def _tokens(tokens: Any) -> Json:
    return {"count": 1, "max_model_len": 8192, "tokens": tokens, "token_strs": None}


EXAMPLES: Mapping[str, Example] = {
    "/v1/completions": Example((COMPLETION,), {"prompt": "The capital of France is", "max_tokens": 8}, streams=True),
    "/v1/chat/completions": Example((CHAT, CHAT_CALL), {"messages": HELLO, "max_tokens": 8}, streams=True),
    "/v1/responses": Example((RESPONSE, RESPONSE_CALL), {"input": "Say hello.", "max_output_tokens": 8}, streams=True),
    "/v1/messages": Example((MESSAGE, MESSAGE_CALL), {"messages": HELLO, "max_tokens": 8}, streams=True),
    "/v1/messages/count_tokens": Example(({"input_tokens": 31},), {"messages": HELLO}),
    "/v1/embeddings": Example((_embeddings([0.6, -0.8]), _embeddings("mpkZP83MTL8=")), {"input": "A noria."}),
    "/v1/models": Example(({"object": "list", "data": [CARD]},)),
    "/v1/models/{name}": Example((CARD,)),
    "/tokenize": Example((_tokens([19556]), _tokens([{"id": 19556, "piece": "Hello"}])), {"prompt": "Hello"}),
    "/detokenize": Example(({"prompt": "Hello", "content": "Hello"},), {"tokens": [19556]}),
    "/apply-template": Example(
        ({"prompt": "<|im_start|>user\nSay hello.<|im_end|>\n<|im_start|>assistant\n"},), {"messages": HELLO}
    ),
    "/live": Example(({"status": "live"},)),
    "/ready": Example(({"status": "ready"},)),
    "/health": Example(({"status": "ready"},)),
    "/version": Example(
        (
            {"version": "0.1.0", "engine": {"family": "llama", "quantize": "int8"}, "fingerprint": FINGERPRINT},
            {"version": "0.1.0", "engine": None, "fingerprint": None},
        )
    ),
    "/metrics": Example(media_type="text/plain"),
}
