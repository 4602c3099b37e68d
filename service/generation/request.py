"""One request as the engine needs it, and what its answer needs besides."""

from collections.abc import Sequence
from dataclasses import dataclass

from model.sampling_params import SamplingParams
from service.engine.messages import Submit
from service.generation.thinking import Reasoning


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the engine computes, the text to return before the answer (None: no echo), and where its tokens start.

    `submit` has no id yet, and no sender. `starts` is empty where tokens have no logprobs. A begin token, which is not
    in the text, starts at 0.
    """

    submit: Submit
    echo: str | None = None
    starts: Sequence[int] = ()

    @property
    def tokens(self) -> list[int]:
        return self.submit.prompt


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request, checked and tokenized. All prompts have the same parameters and number of choices.

    The answer has the `n_best` choices with the highest mean logprob (None: all). `timeout` counts from the request's
    arrival. `starts_message`: the text begins a message, so a tokenizer's leading space is no part of it.
    `scores_end`: a stop token has its logprob reported. `prompt_logprobs` is the number of alternatives beside each
    token of the prompt (None: no logprobs). `stop_token_ids` are the request's own. `grammar_fields` are the client's
    names of the fields that made the grammar. `visible_control` are the names of control tokens that are part of the
    text, as they mark calls. `reasoning` is None for an answer without a thought.
    """

    prompts: tuple[Prompt, ...]
    n_best: int | None = None
    timeout: float | None = None
    return_token_ids: bool = False
    starts_message: bool = False
    scores_end: bool = False
    prompt_logprobs: int | None = None
    stop_token_ids: Sequence[int] = ()
    grammar_fields: tuple[str, ...] = ()
    visible_control: frozenset[str] = frozenset()
    reasoning: Reasoning | None = None

    @property
    def params(self) -> SamplingParams:
        return self.prompts[0].submit.params

    @property
    def n(self) -> int:
        """The number of choices for each prompt."""
        return self.prompts[0].submit.n

    @property
    def n_choices(self) -> int:
        return len(self.prompts) * self.n
