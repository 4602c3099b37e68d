"""The served model, one request to it as the engine needs it, and what the request has used: tokens and time."""

import hashlib
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from typing_extensions import TypedDict  # pydantic, which reads it, needs this one before Python 3.12

from model.batch import RunnerInfo
from model.chat.formats import ChatFormat
from model.chat.reasoning import Marks
from model.checkpoint.generation_config import GenerationDefaults
from model.errors import ModelError, ParameterError
from model.media import KINDS, MediaSpan
from model.sampling_params import RepetitionDetection, SamplingParams, check_ids
from model.tokenizers.base import Tokenizer
from model.tokenizers.pieces import encode_inner
from service import version
from service.engine.mailbox import Restore
from service.engine.messages import Submit
from service.generation.adapters import Adapter
from service.generation.thinking import Reasoning
from service.schema.options import Options

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ServedModel:
    """The served model, or with an `adapter` that model with the adapter's changes.

    Requests may use any of `names`; answers have the first. `chat` is None without a chat format.

    `reasoning` are the marks of thoughts, None for a model without reasoning. `reasoning_budget` is the default for
    the tokens of a thought, and `repetition_detection` that of a request. `description` is what its users should know.
    `source` is where its files are, and their stamp when they were loaded; None: not known.
    `fingerprint` is the `system_fingerprint` of answers. Raises ModelError for defaults that no request could use.
    """

    names: tuple[str, ...]
    tokenizer: Tokenizer
    chat: ChatFormat | None
    defaults: GenerationDefaults
    longest_piece: int
    info: RunnerInfo
    reasoning: Marks | None = None
    reasoning_budget: int | None = None
    repetition_detection: RepetitionDetection | None = None
    adapter: Adapter | None = None
    description: str | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    source: tuple[Path, str] | None = None
    fingerprint: str = field(init=False)

    def __post_init__(self) -> None:
        if self.tokenizer.vocab_size > self.info.vocab_size:
            raise ModelError(
                f"the tokenizer has {self.tokenizer.vocab_size} tokens, but the model only {self.info.vocab_size}: "
                "they do not belong together"
            )
        sampling: dict[str, Any] = self.defaults.sampling
        try:
            check_ids("eos_token_id", self.defaults.eos_token_ids, self.info.vocab_size)
            SamplingParams(**sampling)
        except ParameterError as error:
            raise ModelError(f"the model's generation defaults cannot be used: {error}") from error
        object.__setattr__(self, "fingerprint", fingerprint(self.info, self.adapter))

    @property
    def adapter_number(self) -> int:
        """The number of the adapter in the engine, 0 for none."""
        return 0 if self.adapter is None else self.adapter.number

    @property
    def media_roles(self) -> Mapping[str, frozenset[str]]:
        """The roles whose messages may have images or audio; no key for what the model does not take."""
        if self.chat is None:
            return {}
        unwritten = {"tool"} if self.chat.call_style is None else set()  # results are then told as text
        hears = self.info.audio is not None and self.info.audio.chunk_tokens < self.info.max_model_len
        taken = {"image": self.info.images is not None, "audio": hears}
        return {kind: roles - unwritten for kind, roles in self.chat.media_roles.items() if taken[kind] and roles}

    @property
    def max_prompt_bytes(self) -> int:
        """A text with more bytes than this has more tokens than the context."""
        return self.info.max_model_len * self.longest_piece


def fingerprint(info: RunnerInfo, adapter: Adapter | None = None) -> str:
    """A name for all that answers depend on besides the request: version, scheme, and a hash of weights and backend.

    Why these kernels were chosen is no part of it: that names a measured speed, which differs at each start.
    """
    about = {"version": version(), "max_model_len": str(info.max_model_len), **info.description}
    about.pop("kernels_reason", None)
    about["windows"] = [pool.window for pool in info.pools]
    if adapter is not None:
        about |= {"adapter": adapter.name, "adapter_files": adapter.files}
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    return f"noria-{version()}-{info.description.get('quantize', 'none')}-{digest[:8]}"


def longest_piece(tokenizer: Tokenizer) -> int:
    """The maximum number of bytes in the text of one token; the text of a control token is its name."""
    pieces = map(tokenizer.piece, range(tokenizer.vocab_size))
    return max(map(len, (*pieces, *(name.encode() for name in tokenizer.control))))


@dataclass(frozen=True, slots=True)
class Echo:
    """The text of a prompt, to return before the answer, and where its tokens start in it.

    `starts` is empty where tokens have no logprobs. A begin token, which is not in the text, starts at 0.
    """

    text: str
    starts: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """One request, checked and tokenized. `submits` has a message for each prompt, all with the same parameters.

    `echoes` has one for each prompt; empty without echo. `restore` decodes the images or the audio of the one prompt
    again. The answer has the `n_best` choices with the highest mean logprob (None: all). `timeout` counts from the
    request's arrival. `starts_message`: the text begins a message, so a tokenizer's leading space is no part of it.
    `scores_end`: a stop token has its logprob reported. `prompt_logprobs` is the number of alternatives beside each
    token of the prompt (None: no logprobs). `stop_token_ids` are the request's own. `grammar_fields` are the client's
    names of the fields that made the grammar. `visible_control` are the names of control tokens that are part of the
    text, as they mark calls. `reasoning` is None for an answer without a thought. `ignored` are the client's names of
    fields that have no effect with this model, for the header `x-noria-ignored`. `by_token`: each token has a delta of
    its own, so that the deltas depend on the tokens alone.
    """

    submits: tuple[Submit, ...]
    echoes: tuple[Echo, ...] = ()
    restore: Restore | None = None
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
    ignored: tuple[str, ...] = ()
    by_token: bool = False

    @property
    def params(self) -> SamplingParams:
        return self.submits[0].params

    @property
    def n(self) -> int:
        """The number of choices for each prompt."""
        return self.submits[0].n

    @property
    def n_choices(self) -> int:
        return len(self.submits) * self.n


def sampling(options: Options, served: ServedModel, **limits: Any) -> SamplingParams:
    """Return sampling parameters: the request's, else those of the model's generation config, else the server's."""
    values = served.defaults.completed(options.sampling)
    ends = () if values.get("ignore_eos") else served.defaults.eos_token_ids
    ended_otherwise = values.get("ignore_eos") or limits.get("grammar") is not None
    repetition = options.repetition_detection or (None if ended_otherwise else served.repetition_detection)
    params = SamplingParams(
        **{"seed": secrets.randbits(63), **values},
        logit_bias=options.biases,
        allowed_token_ids=tuple(options.allowed_token_ids),
        bad_words=_bad_words(options.bad_words, served.tokenizer) if options.bad_words else (),
        stop=options.stops,
        stop_token_ids=tuple(dict.fromkeys((*options.stop_token_ids, *ends))),
        repetition_detection=repetition if repetition and repetition.max_pattern_size else None,
        return_progress=options.return_progress,
        **limits,
    )
    params.check_ids(served.info.vocab_size)
    return params


def _bad_words(words: Sequence[str], tokenizer: Tokenizer) -> tuple[tuple[int, ...], ...]:
    """Token ids of each bad word, spelled at the beginning of a word and inside a word."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip(" ")
        opening = bare if tokenizer.strips_leading_space else " " + bare
        found[tuple(tokenizer.encode(opening, add_bos=False, parse_control=False))] = None
        found[tuple(encode_inner(tokenizer, bare))] = None
    return tuple(ids for ids in found if ids)


def submit_of(
    tokens: list[int],
    params: SamplingParams,
    options: Options,
    served: ServedModel,
    media: tuple[MediaSpan, ...] = (),
    inputs: bytes = b"",
) -> Submit:
    """Return the engine's message for one prompt. It has no id yet, and no sender."""
    return Submit(
        0,
        tokens,
        params,
        priority=options.priority,
        cache_salt=options.cache_salt,
        n=options.n,
        media=media,
        adapter=served.adapter_number,
        inputs=inputs,
    )


def late_request(n_prompts: int, n: int) -> ModelRequest:
    """Return a request whose timeout came before tokenizing ended: its `n` choices a prompt are empty."""
    return ModelRequest((Submit(0, [], SamplingParams(max_tokens=0), n=n),) * n_prompts)


@dataclass(slots=True)
class Usage:
    """The tokens of a request so far. A prompt counts once, whatever its number of choices.

    `reasoning` is the part of `completion` that is thought, `images` and `audio` are the parts of `prompt` that stand
    for them, and `from_disk` is the part of `cached` that was read from the prefix store.
    """

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0
    images: int = 0
    audio: int = 0
    from_disk: int = 0

    @classmethod
    def of(cls, submits: Sequence[Submit]) -> Self:
        """Before the first token of the answer."""
        spans = [span for submit in submits for span in submit.media]
        images, audio = (sum(span.stop - span.start for span in spans if span.kind == kind) for kind in KINDS)
        return cls(prompt=sum(len(submit.prompt) for submit in submits), images=images, audio=audio)


class CacheMiss(TypedDict):
    """Where the prompt left the cached prefix: the first prompt token that did not come from it, and why."""

    at: int
    reason: Literal["new", "diverged", "evicted", "window", "salt", "bypassed"]


class Timings(TypedDict):
    """Tokens and milliseconds of a request, by llama.cpp's names: `prompt` until the first token, `predicted` after.

    `load` is the wait until the model was loaded, before all others.

    Of the `cache_n` tokens from the cache `cache_disk_n` were read from the disk. `cache_miss` is null if all full
    pages of the first prompt came from the cache.
    """

    load_ms: float
    queue_ms: float
    cache_n: int
    cache_disk_n: int
    cache_miss: CacheMiss | None
    prompt_n: int
    prompt_ms: float
    prompt_per_second: float
    predicted_n: int
    predicted_ms: float
    predicted_per_second: float


def timings(
    usage: Usage, miss: CacheMiss | None, queue: float, prompt: float, predicted: float, load: float = 0.0
) -> Timings:
    """The timings of a request that waited `load` and `queue` seconds, then took `prompt` and `predicted` seconds."""
    n_prompt = usage.prompt - usage.cached
    return {
        "load_ms": _ms(load),
        "queue_ms": _ms(queue),
        "cache_n": usage.cached,
        "cache_disk_n": usage.from_disk,
        "cache_miss": miss,
        "prompt_n": n_prompt,
        "prompt_ms": _ms(prompt),
        "prompt_per_second": round(n_prompt / prompt, 2) if prompt else 0.0,
        "predicted_n": usage.completion,
        "predicted_ms": _ms(predicted),
        "predicted_per_second": round(usage.completion / predicted, 2) if predicted else 0.0,
    }


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 3)
