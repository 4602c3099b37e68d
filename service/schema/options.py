"""The options of an answer, in the same terms for all APIs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from model.sampling_params import RepetitionDetection


@dataclass(frozen=True, slots=True)
class Options:
    """Options of an answer. `sampling` has values of `PARAMETERS` by name; the model decides those that are left out.

    `n` choices are generated for each prompt. `timeout` is in seconds. `prompt_logprobs` is the number of alternatives
    for each token of the prompt (None: no logprobs). `repetition_detection` None: that of the server.
    """

    sampling: Mapping[str, Any] = field(default_factory=dict)
    biases: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: Sequence[int] = ()
    bad_words: Sequence[str] = ()
    stops: tuple[str, ...] = ()
    stop_token_ids: Sequence[int] = ()
    repetition_detection: RepetitionDetection | None = None
    n: int = 1
    priority: int = 0
    cache_salt: str = ""
    timeout: float | None = None
    prompt_logprobs: int | None = None
    truncate_prompt_tokens: int | None = None
    return_token_ids: bool = False
    return_progress: bool = False


def given(**values: Any) -> dict[str, Any]:
    """Return the values that a request gives: those that are not None."""
    return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Names:
    """A client's names of fields, for errors and notices: of the prompt, its limit, and the content of a message.

    `content` has "{}" for the index of the message; None where the messages of the client are others.
    """

    messages: str = "messages"
    max_tokens: str = "max_tokens"
    content: str | None = None
