"""What the engine is asked for one request."""

from collections.abc import Sequence
from dataclasses import dataclass

from model.sampling_params import SamplingParams


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, the text to give back before the answer (None: no echo), and where in it each token starts.

    `starts` is empty where tokens are not scored; a begin token that the text does not spell starts at 0.
    """

    tokens: list[int]
    echo: str | None = None
    starts: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Order:
    """One request, checked, tokenized and ready for the engine: `n` choices of each prompt.

    `n_best` of them are answered with, those of the highest mean logprob (None: all). `prompt_logprobs` is how many
    alternatives to report beside each token of the prompt, `scores_end` whether a stop token has its logprob reported,
    `timeout` seconds from the request's arrival.
    `grammar_fields` are the request's fields that its grammar is made of, `visible_control` names control tokens that
    are text here.
    """

    prompts: tuple[Prompt, ...]
    params: SamplingParams
    n: int
    n_best: int | None = None
    starts_message: bool = False
    scores_end: bool = False
    return_token_ids: bool = False
    prompt_logprobs: int | None = None
    priority: int = 0
    cache_salt: str = ""
    timeout: float | None = None
    grammar_fields: tuple[str, ...] = ()
    visible_control: frozenset[str] = frozenset()
