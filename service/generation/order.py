"""The order: one request as the engine needs it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from model.image_spans import ImageSpan
from model.sampling_params import SamplingParams
from service.generation.thinking import Reasoning
from service.schema.generation import RequestOptions

DEFAULT_OPTIONS = RequestOptions()


@dataclass(frozen=True, slots=True)
class Prompt:
    """Token ids, the text to return before the answer (None: no echo), and the index in it at which each token starts.

    `starts` is empty where tokens have no logprobs. A begin token, which is not in the text, starts at 0. `images` are
    the images among the tokens, in order, and `pixels` their bytes, one after another (`Submit`).
    """

    tokens: list[int]
    echo: str | None = None
    starts: Sequence[int] = ()
    images: tuple[ImageSpan, ...] = ()
    pixels: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class Order:
    """One request, checked and tokenized: `n` choices for each prompt.

    The answer has the `n_best` choices with the highest mean logprob (None: all). `starts_message`: the text begins a
    message, so a tokenizer's leading space is no part of it. `scores_end`: a stop token has its logprob reported.
    `grammar_fields` are the client's names of the fields that made the grammar. `visible_control` are the names of
    control tokens that are part of the text, as they mark calls. `reasoning` is None for an answer without a thought.
    `adapter` is the number of the LoRA adapter, 0 for none.
    """

    prompts: tuple[Prompt, ...]
    params: SamplingParams
    n: int
    n_best: int | None = None
    starts_message: bool = False
    scores_end: bool = False
    options: RequestOptions = DEFAULT_OPTIONS
    grammar_fields: tuple[str, ...] = ()
    visible_control: frozenset[str] = frozenset()
    reasoning: Reasoning | None = None
    adapter: int = 0
