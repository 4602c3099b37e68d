"""Values that several examples of requests and answers share."""

from service.generation.usage import Timings

HELLO = [{"role": "user", "content": "Say hello."}]
ARGUMENTS = '{"city": "Paris"}'
MODEL = "smollm2-135m-instruct"
FINGERPRINT = "noria-0.1.0-int8-ab12cd34"
TIMINGS: Timings = {
    "queue_ms": 0.4,
    "cache_n": 0,
    "cache_miss": {"at": 0, "reason": "new"},
    "prompt_n": 31,
    "prompt_ms": 41.2,
    "prompt_per_second": 752.4,
    "predicted_n": 2,
    "predicted_ms": 9.1,
    "predicted_per_second": 219.8,
}
