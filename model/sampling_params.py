"""What a request may ask of the sampler: fields, ranges, defaults. No torch."""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from model.errors import ParameterError

# field -> (least, greatest), of the field's own type; OpenAI's ranges where it has the field, vLLM's elsewhere.
RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
    "top_k": (-1, 2**31 - 1),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
    "repetition_penalty": (0.01, 10.0),
    "seed": (-(2**63), 2**63 - 1),
    "max_tokens": (0, 2**31 - 1),
    "min_tokens": (0, 2**31 - 1),
    "logprobs": (0, 20),
    "prompt_logprobs": (0, 20),
    "prompt_lookup_num_tokens": (0, 16),
}
POOLINGS = ("mean", "last")
MAX_STOPS = 16
MAX_STOP_CHARS = 512
MAX_STOP_TOKENS = 1024
MAX_BIASED_TOKENS = 1024
MAX_ALLOWED_TOKENS = 1024
MAX_BAD_WORDS = 128
BIAS_LIMIT = 100.0
MAX_GRAMMAR_CHARS = 2**17


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one choice is drawn and when it ends.

    `temperature` 0 is greedy. `top_k` 0 or -1 keeps all tokens. `logprobs` is the number of alternatives
    reported beside each drawn token (None: no logprobs at all), `prompt_logprobs` the same for prompt tokens.
    `prompt_lookup_num_tokens` is how many tokens a step may propose from earlier text (0: none); it changes the speed,
    never the answer. `stop_token_ids` holds every token that ends the output, the model's end tokens among them unless
    `ignore_eos`. `stop` strings are matched by the service, which sees text; the engine ignores them by design.
    `allowed_token_ids`, unless empty, are the only tokens drawn. `bad_words` are token sequences: the last token of one
    is not drawn where the output ends with those before it.
    `grammar` is what the output must be, in the syntax of llguidance (see `model/grammar/compiler.py`); it says itself
    where the output may end, so neither `ignore_eos` nor `min_tokens` goes with it.
    `embed` "mean" or "last" asks for the prompt's embedding, pooled in this way, and for no output (`max_tokens` 0).
    `return_progress` asks for a report of each step that computes a part of the prompt.

    Raises ParameterError, naming field, value and limit.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    seed: int = 0
    max_tokens: int = 16
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    prompt_lookup_num_tokens: int = 0
    grammar: str | None = None
    embed: str | None = None
    return_progress: bool = False

    def __post_init__(self) -> None:
        for name, (least, greatest) in RANGES.items():
            _check_range(name, getattr(self, name), least, greatest)
        if self.min_tokens > self.max_tokens:
            raise ParameterError(
                "min_tokens", f"min_tokens must be at most max_tokens ({self.max_tokens}), got {self.min_tokens}"
            )
        _check_stops(self.stop)
        if len(self.stop_token_ids) > MAX_STOP_TOKENS:
            raise ParameterError(
                "stop_token_ids",
                f"stop_token_ids takes at most {MAX_STOP_TOKENS} ids, the model's end tokens among them, "
                f"got {len(self.stop_token_ids)}",
            )
        _check_bias(self.logit_bias)
        if len(self.allowed_token_ids) > MAX_ALLOWED_TOKENS:
            raise ParameterError(
                "allowed_token_ids",
                f"allowed_token_ids takes at most {MAX_ALLOWED_TOKENS} ids, got {len(self.allowed_token_ids)}",
            )
        if self.grammar is not None:
            self._check_grammar(self.grammar)
        if self.embed is not None and (self.embed not in POOLINGS or self.max_tokens):
            message = f"embed must be one of {', '.join(POOLINGS)}, with max_tokens 0, got {self.embed!r}"
            raise ParameterError("embed", message)

    @property
    def draws_blindly(self) -> bool:
        """Whether a draw looks at no token of the output before it, only at how many there are."""
        penalties = (self.presence_penalty, self.frequency_penalty, self.repetition_penalty)
        looks = self.bad_words or self.grammar or self.prompt_lookup_num_tokens
        return not looks and penalties == (0.0, 0.0, 1.0)

    def check_ids(self, vocab_size: int) -> None:
        """Raise ParameterError for a token id outside the logits' width, and if there may be no token left to draw."""
        check_ids("allowed_token_ids", self.allowed_token_ids, vocab_size)
        check_ids("logit_bias", (token for token, _ in self.logit_bias), vocab_size)
        check_ids("stop_token_ids", self.stop_token_ids, vocab_size)
        hidden = {word[-1] for word in self.bad_words}.union(self.stop_token_ids if self.min_tokens else ())
        allowed = set(self.allowed_token_ids)
        if allowed <= hidden if allowed else len(hidden) >= vocab_size:
            raise ParameterError(
                "allowed_token_ids",
                "bad_words and min_tokens leave no token to draw of the "
                + (f"{len(allowed)} in allowed_token_ids" if allowed else f"{vocab_size} in the vocabulary"),
            )

    def _check_grammar(self, grammar: str) -> None:
        if len(grammar) > MAX_GRAMMAR_CHARS:
            raise ParameterError(
                "grammar", f"a grammar or schema takes at most {MAX_GRAMMAR_CHARS} characters, got {len(grammar)}"
            )
        for name in ("ignore_eos", "min_tokens"):
            if getattr(self, name):
                raise ParameterError(
                    name, f"{name} ({getattr(self, name)}) contradicts a grammar, which says where the output ends"
                )


_DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(SamplingParams)}


def check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    """Raise ParameterError for what is no token id of the vocabulary."""
    for token in ids:
        if type(token) is not int or not 0 <= token < vocab_size:
            raise ParameterError(name, f"{name} has token id {token!r}, the vocabulary is 0..{vocab_size - 1}")


def _check_range(name: str, value: object, least: float, greatest: float) -> None:
    if value is None and _DEFAULTS[name] is None:
        return
    kind, number = ("an integer ", int) if isinstance(least, int) else ("", int | float)
    if isinstance(value, bool) or not isinstance(value, number) or not least <= value <= greatest:
        raise ParameterError(name, f"{name} must be {kind}between {least} and {greatest}, got {value!r}")


def _check_stops(stops: tuple[str, ...]) -> None:
    if len(stops) > MAX_STOPS:
        raise ParameterError("stop", f"stop takes at most {MAX_STOPS} strings, got {len(stops)}")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise ParameterError(
                "stop", f"each stop string must have 1 to {MAX_STOP_CHARS} characters, got one of {len(stop)}"
            )


def _check_bias(bias: tuple[tuple[int, float], ...]) -> None:
    if len(bias) > MAX_BIASED_TOKENS:
        raise ParameterError("logit_bias", f"logit_bias takes at most {MAX_BIASED_TOKENS} tokens, got {len(bias)}")
    for token, value in bias:
        if not -BIAS_LIMIT <= value <= BIAS_LIMIT:
            raise ParameterError(
                "logit_bias",
                f"logit_bias of token {token} must be between -{BIAS_LIMIT:g} and {BIAS_LIMIT:g}, got {value}",
            )
