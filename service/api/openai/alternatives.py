"""The number of alternatives beside each token, which OpenAI, vLLM and llama.cpp write in different fields."""

from model.errors import quoted
from service.errors.errors import InvalidRequest


def alternatives(logprobs: bool | int | None, top_logprobs: int | None, n_probs: int | None) -> int | None:
    """The number that a request wants under these names; None: no logprobs. Raises InvalidRequest if they differ.

    A number in `logprobs`, as in completions, is that of alternatives. true leaves it to `top_logprobs` (chat) or
    `n_probs` (llama.cpp).
    """
    off = logprobs is None or logprobs is False
    if off and top_logprobs and not n_probs:
        message = f"top_logprobs needs logprobs to be true, got {top_logprobs} without"
        raise InvalidRequest(message, param="top_logprobs")
    if off and not n_probs:
        return None
    names = {"logprobs": logprobs, "top_logprobs": top_logprobs, "n_probs": n_probs or None}
    given = {name: value for name, value in names.items() if value is not None and value is not True}
    if len(set(given.values())) > 1 or False in (value for value in given.values() if isinstance(value, bool)):
        (name, value), (other, another) = list(given.items())[:2]
        message = f"{name} ({quoted(value)}) and {other} ({quoted(another)}) differ: send one of them"
        raise InvalidRequest(message, param=name)
    return next(iter(given.values()), 0)
