"""The parameters of sampling, each declared once: its row is a field of `SamplingParams`. No torch.

All that depends on which parameters exist reads these rows: the fields of a request, the message to the engine, whether
a step may run ahead, and which rows the compiled kernel may sample. To add one that changes the sampling, write its row
here and its step in `model/step/logits.py` or `model/step/distribution.py`. The rules of those that end the output are
in `service/engine/scheduling/sequence.py`. A parameter that nothing implements stops runner or scheduler at the start.
"""

from collections.abc import Iterable, Mapping, Sized
from dataclasses import asdict, dataclass, field, fields
from enum import Enum, auto
from functools import cached_property
from struct import pack
from typing import Any

from model.errors import ParameterError, quoted


class Stage(Enum):
    """The stage of sampling at which a parameter acts."""

    LOGITS = auto()
    """Changes the logits, of greedy rows too."""
    DISTRIBUTION = auto()
    """Chooses among the distribution at a temperature above 0. The likeliest token always stays a candidate."""
    END = auto()
    """Decides after which token the sequence ends."""
    REPORT = auto()
    """Requests results of the network besides the tokens."""
    SCHEDULE = auto()
    """Concerns the scheduler alone: the speed, or reports of progress. Changes no token."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One row of the table.

    `limits` are the least and the greatest value. `neutral` is a second value that has no effect, like the default.
    `reads_output` says that sampling a token needs to know the tokens of the output before it.
    `description` is for clients; a row without one is not a field of requests, or one of another name or type.
    """

    name: str
    kind: type
    default: Any
    stage: Stage
    limits: tuple[float, float] | None
    neutral: Any
    reads_output: bool
    description: str | None

    def check(self, value: object) -> None:
        """Raise ParameterError for a value outside the limits, or of another type."""
        if self.limits is None or (value is None and self.default is None):
            return
        least, greatest = self.limits
        words, number = ("an integer ", int) if isinstance(least, int) else ("", int | float)
        if isinstance(value, bool) or not isinstance(value, number) or not least <= value <= greatest:
            raise ParameterError(
                self.name, f"{self.name} must be {words}between {least} and {greatest}, got {quoted(value)}"
            )


def parameter(
    default: Any,
    stage: Stage,
    limits: tuple[float, float] | None = None,
    description: str | None = None,
    *,
    neutral: Any = None,
    reads_output: bool = False,
) -> Any:
    """Declare a field of `SamplingParams`: the fields of `Parameter` but its name and type."""
    row = {"stage": stage, "limits": limits, "description": description}
    return field(default=default, metadata=row | {"neutral": neutral, "reads_output": reads_output})


def declared(params: type) -> Mapping[str, Parameter]:
    """Return the rows of a class of parameters, by name; made once a class."""
    if params not in _TABLES:
        rows = (Parameter(f.name, f.type, f.default, **f.metadata) for f in fields(params))  # type: ignore[arg-type]
        _TABLES[params] = {row.name: row for row in rows}
    return _TABLES[params]


_TABLES: dict[type, Mapping[str, Parameter]] = {}
POOLINGS = ("mean", "last")
MAX_STOPS = 16
MAX_STOP_CHARS = 512
MAX_STOP_TOKENS = 1024
MAX_BIASED_TOKENS = 1024
MAX_ALLOWED_TOKENS = 1024
MAX_BAD_WORDS = 128
BIAS_LIMIT = 100.0
MAX_GRAMMAR_CHARS = 2**17
MAX_PATTERN_SIZE = 512
MAX_PATTERN_COUNT = 1000
LEAST_TEMPERATURE = 1e-30
"""Below it, differences of float32 logits overflow. Sampling is greedy at much greater values already."""
LEAST_TOP_P = 1e-30
"""Below it, float32 may become 0. Only one token is left at much greater values already."""
DRAWING = [("temperature", "f4"), ("min_p", "f4"), ("top_p", "f4"), ("top_k", "i4")]
"""`SamplingParams.drawing` for NumPy."""
FREE_END = '{"end": "free"'
"""The beginning of a grammar that does not say where the output ends."""


@dataclass(frozen=True, slots=True)
class RepetitionDetection:
    """The repetition that ends an output: at its end `min_count` copies of a pattern of tokens. Names are vLLM's.

    The sizes are tokens of the pattern. `max_pattern_size` 0 detects nothing; `min_pattern_size` 0 is 1.
    Raises ParameterError.
    """

    max_pattern_size: int = 0
    min_pattern_size: int = 0
    min_count: int = 0

    def __post_init__(self) -> None:
        self._check("max_pattern_size", 0, MAX_PATTERN_SIZE)
        self._check("min_pattern_size", 0, self.max_pattern_size)
        self._check("min_count", 2 if self.max_pattern_size else 0, MAX_PATTERN_COUNT)

    def __str__(self) -> str:
        """Return the value of --repetition-detection."""
        return f"{self.max_pattern_size},{self.min_pattern_size},{self.min_count}"

    def _check(self, name: str, least: int, most: int) -> None:
        if not least <= (value := getattr(self, name)) <= most:
            path = f"repetition_detection.{name}"
            raise ParameterError(path, f"{path} must be between {least} and {most}, got {value}")


@dataclass(frozen=True)
class SamplingParams:
    """How one choice is sampled and when it ends: the table of all parameters. Limits are OpenAI's, else vLLM's.

    `temperature` 0 is greedy. `top_k` 0 or -1 allows all tokens. `logprobs` is the number of alternatives reported
    with each sampled token (None: no logprobs at all). `prompt_logprobs` is the same for prompt tokens.
    `prompt_lookup_num_tokens` is the greatest number of draft tokens in a step; they come from earlier text. None is
    the runner's own number.
    `stop_token_ids` has every token that ends the output. The model's end tokens are in it unless `ignore_eos`.
    The service matches `stop` strings, because it sees text. The engine ignores them by design.
    If `allowed_token_ids` is not empty, only its tokens are sampled. Each of `bad_words` is a token sequence: its last
    token is not sampled where the output ends with the tokens before it.
    `grammar` constrains the output, in the syntax of llguidance (see `model/grammar/compiler.py`). It decides where the
    output may end, so it excludes `ignore_eos`, `min_tokens` and `repetition_detection`.
    `embed` "mean" or "last" requests the prompt's embedding, pooled in this way, and no output (`max_tokens` 0).
    `return_progress` requests a report of each step that computes a part of the prompt.

    Raises ParameterError, which names field, value and limit.
    """

    temperature: float = parameter(
        1.0, Stage.DISTRIBUTION, (0.0, 2.0), "0 is greedy. Default: the model's own value, or 1."
    )
    top_p: float = parameter(
        1.0,
        Stage.DISTRIBUTION,
        (0.0, 1.0),
        "Samples from the likeliest tokens, as many as are needed for their probabilities to add up to this; 0: from "
        "the likeliest. Default: the model's own value, or 1.",
    )
    top_k: int = parameter(
        0,
        Stage.DISTRIBUTION,
        (-1, 2**31 - 1),
        "Samples from the k likeliest tokens; 0 or -1: from all. Default: the model's own value, or 0.",
        neutral=-1,
    )
    min_p: float = parameter(
        0.0,
        Stage.DISTRIBUTION,
        (0.0, 1.0),
        "Samples from tokens with at least this share of the highest probability. Default: the "
        "model's own value, or 0.",
    )
    presence_penalty: float = parameter(
        0.0,
        Stage.LOGITS,
        (-2.0, 2.0),
        "Subtracted once from the logit of every token in the output so far. Default: 0.",
        reads_output=True,
    )
    frequency_penalty: float = parameter(
        0.0,
        Stage.LOGITS,
        (-2.0, 2.0),
        "Subtracted from a token's logit for each time it is in the output so far. Default: 0.",
        reads_output=True,
    )
    repetition_penalty: float = parameter(
        1.0,
        Stage.LOGITS,
        (0.01, 10.0),
        "For tokens in the prompt or the output: divides a positive logit, multiplies a negative one. Default: the "
        "model's own value, or 1.",
        reads_output=True,
    )
    seed: int = parameter(
        0,
        Stage.DISTRIBUTION,
        (-(2**63), 2**63 - 1),
        "The same request with the same seed gives the same tokens. Default: random.",
    )
    prompt_lookup_num_tokens: int | None = parameter(
        None,
        Stage.SCHEDULE,
        (0, 16),
        "The greatest number of draft tokens in a step; they are copied from earlier text. Default: see "
        "`--prompt-lookup`.",
        neutral=0,
        reads_output=True,
    )
    min_tokens: int = parameter(
        0,
        Stage.LOGITS,
        (0, 2**31 - 1),
        "The output does not end before it has this many tokens; at most `max_tokens`. Default: 0.",
    )
    logit_bias: tuple[tuple[int, float], ...] = parameter((), Stage.LOGITS)
    allowed_token_ids: tuple[int, ...] = parameter((), Stage.LOGITS)
    bad_words: tuple[tuple[int, ...], ...] = parameter((), Stage.LOGITS, reads_output=True)
    grammar: str | None = parameter(None, Stage.LOGITS, reads_output=True)
    max_tokens: int = parameter(16, Stage.END, (0, 2**31 - 1))
    stop: tuple[str, ...] = parameter((), Stage.END)
    include_stop_str_in_output: bool = parameter(
        False, Stage.END, None, "The text includes the stop string, or the stop token, that ended it."
    )
    stop_token_ids: tuple[int, ...] = parameter((), Stage.END)
    ignore_eos: bool = parameter(False, Stage.END, None, "The model's own end tokens do not end the output.")
    repetition_detection: RepetitionDetection | None = parameter(None, Stage.END)  # noqa: RUF009 - frozen
    logprobs: int | None = parameter(None, Stage.REPORT, (0, 20))
    prompt_logprobs: int | None = parameter(None, Stage.REPORT, (0, 20))
    embed: str | None = parameter(None, Stage.REPORT)
    return_progress: bool = parameter(False, Stage.SCHEDULE)

    def __post_init__(self) -> None:
        for name, row in declared(type(self)).items():
            if (value := getattr(self, name)) is not row.default:
                row.check(value)
        if self.min_tokens > self.max_tokens:
            raise ParameterError(
                "min_tokens", f"min_tokens must be at most max_tokens ({self.max_tokens}), got {self.min_tokens}"
            )
        _check_stops(self.stop)
        _check_length("stop_token_ids", self.stop_token_ids, MAX_STOP_TOKENS, "ids, the model's end tokens among them")
        _check_bias(self.logit_bias)
        _check_length("allowed_token_ids", self.allowed_token_ids, MAX_ALLOWED_TOKENS, "ids")
        if self.grammar is not None:
            self._check_grammar(self.grammar)
        if self.embed is not None and (self.embed not in POOLINGS or self.max_tokens):
            message = f"embed must be one of {', '.join(POOLINGS)}, with max_tokens 0, got {quoted(self.embed)}"
            raise ParameterError("embed", message)

    @cached_property
    def stop_tokens(self) -> frozenset[int]:
        """Return `stop_token_ids`, of which there may be many, for a look-up after every token."""
        return frozenset(self.stop_token_ids)

    @cached_property
    def used(self) -> frozenset[str]:
        """Return the names of parameters that have another value than the default or the neutral one."""
        rows = declared(type(self)).values()
        return frozenset(row.name for row in rows if getattr(self, row.name) not in (row.default, row.neutral))

    @cached_property
    def drawing(self) -> bytes:
        """Return the parameters with which a kernel samples a token, as DRAWING."""
        temperature = max(self.temperature, LEAST_TEMPERATURE) if self.temperature > 0 else 0.0
        return pack("3fi", temperature, self.min_p, max(self.top_p, LEAST_TOP_P), max(self.top_k, 0))

    @cached_property
    def independent_of_output(self) -> bool:
        """Return whether sampling needs no token of the output before, only how many there are."""
        rows = declared(type(self))
        return not any(rows[name].reads_output for name in self.used)

    def check_ids(self, vocab_size: int) -> None:
        """Raise ParameterError for a token id outside the vocabulary, and if no token may be left to sample."""
        check_ids("allowed_token_ids", self.allowed_token_ids, vocab_size)
        check_ids("logit_bias", (token for token, _ in self.logit_bias), vocab_size)
        check_ids("stop_token_ids", self.stop_token_ids, vocab_size)
        hidden = {word[-1] for word in self.bad_words}.union(self.stop_token_ids if self.min_tokens else ())
        allowed = set(self.allowed_token_ids)
        if allowed <= hidden if allowed else len(hidden) >= vocab_size:
            raise ParameterError(
                "allowed_token_ids",
                "bad_words and min_tokens leave no token to sample of the "
                + (f"{len(allowed)} in allowed_token_ids" if allowed else f"{vocab_size} in the vocabulary"),
            )

    def _check_grammar(self, grammar: str) -> None:
        if len(grammar) > MAX_GRAMMAR_CHARS:
            raise ParameterError(
                "grammar", f"a grammar or schema takes at most {MAX_GRAMMAR_CHARS} characters, got {len(grammar)}"
            )
        for name in () if grammar.startswith(FREE_END) else ("ignore_eos", "min_tokens", "repetition_detection"):
            if value := getattr(self, name):
                text = quoted(value if isinstance(value, int) else asdict(value))
                raise ParameterError(name, f"{name} ({text}) contradicts a grammar, which says where the output ends")


PARAMETERS = declared(SamplingParams)
RANGES: Mapping[str, tuple[float, float]] = {name: row.limits for name, row in PARAMETERS.items() if row.limits}
"""Least and greatest value of each number."""


def check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    """Raise ParameterError for a value that is no token id of the vocabulary."""
    for token in ids:
        if type(token) is not int or not 0 <= token < vocab_size:
            raise ParameterError(name, f"{name} has token id {quoted(token)}, the vocabulary is 0..{vocab_size - 1}")


def _check_length(name: str, values: Sized, most: int, words: str) -> None:
    if len(values) > most:
        raise ParameterError(name, f"{name} takes at most {most} {words}, got {len(values)}")


def _check_stops(stops: tuple[str, ...]) -> None:
    _check_length("stop", stops, MAX_STOPS, "strings")
    for stop in stops:
        if not 1 <= len(stop) <= MAX_STOP_CHARS:
            raise ParameterError(
                "stop", f"each stop string must have 1 to {MAX_STOP_CHARS} characters, got one of {len(stop)}"
            )


def _check_bias(bias: tuple[tuple[int, float], ...]) -> None:
    _check_length("logit_bias", bias, MAX_BIASED_TOKENS, "tokens")
    for token, value in bias:
        if not -BIAS_LIMIT <= value <= BIAS_LIMIT:
            raise ParameterError(
                "logit_bias",
                f"logit_bias of token {token} must be between -{BIAS_LIMIT:g} and {BIAS_LIMIT:g}, got {value}",
            )
