"""The messages between service and engine, and their frames on the wire: plain data as JSON, never pickles.

To the engine:    LoadModel, Submit, Abort, Look, Follow, LoadAdapter, UnloadAdapter, Stop
From the engine:  Loading (stage, progress), Ready (RunnerInfo), Failed (start-up error), Report (one a step), Beat,
                  Picture (one a Look), AdapterLoaded (one a LoadAdapter)
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast, get_args

from model.batch import RunnerInfo, TokenLogprob
from model.machine import frames, records
from model.media import MediaSpan
from model.sampling_params import SamplingParams
from service.engine.picture import Picture, PoolPages, Reason

PIECE = 2**18
"""Bytes of a message that the service's event loop writes before it serves others."""
FINISHES = ("abort", "timeout", "length", "repetition", "stop")
"""Reasons for which a sequence ends without an error. A request has the first of them that one of its choices has.
`service/generation/finish.py` has the words for them."""
AGAIN = "again"
"""The end of a preempted sequence whose images or audio the engine has no more: the service submits it again."""


@dataclass(frozen=True, slots=True)
class LoadModel:
    """The order to load a model: `options` are the keyword arguments of the runner's callable.

    The service replaces the engine if a sequence makes no progress for `step_timeout` seconds. `name` is for people.
    """

    options: dict[str, Any]
    step_timeout: float
    name: str = ""


@dataclass(frozen=True, slots=True)
class Submit:
    """One prompt to complete `n` times: sequences `id`, `id + 1`, ... make the choices `choice`, `choice + 1`, ...

    No other sequence of this engine has one of these ids. Of the waiting sequences those with the lowest `priority` are
    admitted first, in fair shares for each `tenant` (the name of an API key). Only sequences with the same
    `cache_owner` share encoded media, and pages only if they have the same `cache_salt`, too. `media` are the images or
    the chunks of audio of the prompt in the order of their places, and `inputs` the bytes of all of them, one after
    another (`MediaWork.inputs`); on the wire these follow the JSON. `adapter` is the number of a loaded LoRA adapter,
    0 for none. With `n` 1 the sequence may go on after the `output` that another engine has computed; of its prompt,
    `n_scored` log probabilities are known. `first` and `between` are its own targets in seconds for the first token and
    between two; 0: the server's.
    """

    id: int
    prompt: list[int]
    params: SamplingParams
    choice: int = 0
    priority: int = 0
    cache_salt: str = ""
    n: int = 1
    tenant: str = ""
    media: tuple[MediaSpan, ...] = ()
    adapter: int = 0
    cache_owner: str = ""
    output: list[int] = field(default_factory=list)
    n_scored: int = 0
    first: float = 0.0
    between: float = 0.0
    inputs: bytes = field(default=b"", repr=False)

    @property
    def ids(self) -> range:
        return range(self.id, self.id + self.n)


@dataclass(frozen=True, slots=True)
class Abort:
    """The order to forget a sequence. An unknown id is no error: the sequence may have finished meanwhile."""

    id: int


@dataclass(frozen=True, slots=True)
class Look:
    """The order to send a picture after the present step: of everything, or of the sequences with these ids.

    Looks are answered in order.
    """

    ids: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Follow:
    """The order to report each page that gets or loses its name from now on."""


@dataclass(frozen=True, slots=True)
class LoadAdapter:
    """The order to read a LoRA adapter from a directory. Numbers count up from 1; a service uses none twice."""

    adapter: int
    path: str


@dataclass(frozen=True, slots=True)
class UnloadAdapter:
    """The order to forget an adapter. The service sends it once no sequence uses the adapter, and none will."""

    adapter: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The order to end the engine process."""


@dataclass(frozen=True, slots=True)
class Loading:
    """Start-up progress: the name of a stage and a fraction 0..1."""

    stage: str
    progress: float


@dataclass(frozen=True, slots=True)
class Ready:
    """The model is loaded and serves."""

    info: RunnerInfo


@dataclass(frozen=True, slots=True)
class Failed:
    """The model cannot be loaded; `message` is one line for a person."""

    message: str


@dataclass(frozen=True, slots=True)
class Beat:
    """The engine process is alive. It sends beats while it is idle and inside long steps.

    `stalled`: the seconds since the last progress of the sequence, running or preparing, that has waited longest.
    `resident`: the process's memory in RAM in bytes, None where the system cannot tell. `processor`: the seconds of
    processor time that it has used.
    """

    stalled: float = 0.0
    resident: int | None = None
    processor: float = 0.0


@dataclass(frozen=True, slots=True)
class AdapterLoaded:
    """The answer to a LoadAdapter. `problem` is one line for a person, empty if the adapter can serve."""

    adapter: int
    problem: str = ""


class PrefixMiss(NamedTuple):
    """A place where a prompt left the prefix cache. `at` is its first token without a page, `reason` says why.

    Only tokens that a full page of the prompt holds count. "new": nothing of this tenant went on after the tokens
    before `at`. "diverged": its earlier sequences went on with other tokens. "evicted": the page was computed, and is
    gone. "window": the page is there, but pages of the window before it are gone. "salt": nothing was computed with
    this salt. "bypassed": the request needs every position.
    """

    at: int
    reason: str


class Admitted(NamedTuple):
    """The facts on a sequence when it leaves the queue, after `queued` seconds.

    `cached` counts prompt tokens taken from the cache, `from_disk` those of them that were read from the disk. `miss`
    says where the prompt left the cache, unless it had all it could.
    """

    cached: int = 0
    queued: float = 0.0
    from_disk: int = 0
    miss: PrefixMiss | None = None


class DraftCount(NamedTuple):
    """The draft tokens that a step verified in one sequence: who drafted them, how many, and how many it accepted."""

    drafter: str
    drafted: int
    accepted: int


class Update(NamedTuple):
    """The result of a step for one sequence.

    `finish` is None until the last update. It is then "stop" (`tokens[-1]` is a stop token), "length",
    "repetition" or "error", or "timeout" or "abort" from `Mailbox.expire`. `admitted` comes with the first update.
    `failure` explains an "error" that the request itself caused, `fault` one of the server in this sequence alone.
    `processed` counts computed prompt tokens, if the request has progress reported. `embedding` [dim] comes with the
    last update. `draft` counts the draft tokens of the step.
    """

    id: int
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    finish: str | None = None
    admitted: Admitted | None = None
    failure: str | None = None
    processed: int | None = None
    embedding: tuple[float, ...] = ()
    fault: str | None = None
    draft: DraftCount | None = None


class PageChange(NamedTuple):
    """A page of the pool with this index that has got its name, or has lost it: then it has no tokens.

    Names are hexadecimal. The first page of a prompt has no `parent`. `media` are the digests of what starts in it.
    """

    pool: int
    name: str
    parent: str = ""
    tokens: tuple[int, ...] = ()
    adapter: int = 0
    salt: str = ""
    media: tuple[str, ...] = ()


class AdapterStats(NamedTuple):
    """Number of sequences that use one LoRA adapter, by its number."""

    adapter: int
    running: int
    waiting: int


DRAFTERS = ("prompt_lookup", "answers", "self", "draft_model")
"""Those who draft tokens, by their names in metrics."""


class Stats(NamedTuple):
    """State of the engine after a step. Counters are totals since the engine started.

    `prompt_tokens` were computed, those of sequences that are computed again among them. `adapters` are those that
    sequences use. Of `hit_tokens`, `disk_tokens` were read from the prefix store. It has written `pages_written`, and
    not written `pages_dropped`: its queue was full, or the disk refused them. The disk failed `disk_errors` times, the
    latest with the system's number `disk_error`. `pages_damaged` had other bytes than they should. `blocked` says why
    nothing more is admitted. Preemptions lost `lost_tokens` that were computed, the latest those of `victim`. Of each
    of DRAFTERS steps verified some tokens, and accepted some.
    """

    running: int = 0
    waiting: int = 0
    step_tokens: int = 0
    preemptions: int = 0
    queried_tokens: int = 0
    hit_tokens: int = 0
    pools: tuple[PoolPages, ...] = ()
    grammar_restarts: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    adapters: tuple[AdapterStats, ...] = ()
    disk_tokens: int = 0
    pages_written: int = 0
    pages_dropped: int = 0
    pages_damaged: int = 0
    disk_errors: int = 0
    disk_error: int = 0
    blocked: Reason | None = None
    lost_tokens: int = 0
    victim: int = 0
    prompt_lookup_drafted: int = 0
    prompt_lookup_accepted: int = 0
    answers_drafted: int = 0
    answers_accepted: int = 0
    self_drafted: int = 0
    self_accepted: int = 0
    draft_model_drafted: int = 0
    draft_model_accepted: int = 0

    @property
    def drafters(self) -> list[str]:
        """Return the names of those of whom a step has verified tokens."""
        return [drafter for drafter in DRAFTERS if getattr(self, f"{drafter}_drafted")]

    def drafts(self, verb: str) -> int:
        """Return the draft tokens of all drafters that were "drafted", or "accepted"."""
        return sum(getattr(self, f"{drafter}_{verb}") for drafter in DRAFTERS)


@dataclass(frozen=True, slots=True)
class Report:
    """All updates of a step, the state of the engine, and the changes of pages if somebody follows them."""

    updates: tuple[Update, ...]
    stats: Stats = field(default_factory=Stats)
    pages: tuple[PageChange, ...] = ()


ToEngine = LoadModel | Submit | Abort | Look | Follow | LoadAdapter | UnloadAdapter | Stop
FromEngine = Loading | Ready | Failed | Beat | Report | Picture | AdapterLoaded


# On the wire, a message is its kind and its fields, as `model/machine/records.py` writes them.

PLAIN = Update(0)[2:]


def to_json(message: ToEngine | FromEngine) -> str:
    """Return a message as JSON text, without the bytes of `data_of`."""
    body: Any = message
    if isinstance(message, Report):  # a plain token, the most frequent update, should cost little
        body = [[item[:2] if item[2:] == PLAIN else item for item in message.updates], message.stats]
        body += [message.pages] * bool(message.pages)
    elif isinstance(message, Submit):
        body = records.row(message)[:-1]
    return records.to_json([type(message).__name__, body])


def data_of(message: ToEngine | FromEngine) -> bytes:
    """Return the bytes that follow a message's JSON on the wire."""
    return message.inputs if isinstance(message, Submit) else b""


def from_json(value: list[Any], data: bytes = b"") -> ToEngine | FromEngine:
    """Return the message whose JSON was `value`, with the bytes behind it.

    Raises KeyError, TypeError or ValueError for anything else.
    """
    kind, body = value
    message: ToEngine | FromEngine = _READERS[kind]([*body, data] if data else body)
    return message


_READERS = {kind.__name__: records.record(kind) for kind in (*get_args(ToEngine), *get_args(FromEngine))}


def frame(message: ToEngine | FromEngine) -> bytes:
    return b"".join(pieces(message))


def pieces(message: ToEngine | FromEngine) -> Iterator[bytes | memoryview]:
    """Yield the bytes of one message, its data in pieces that are not copied."""
    data = memoryview(data_of(message))
    yield frames.head(message, len(data), to_json=to_json)
    for start in range(0, len(data), PIECE):
        yield data[start : start + PIECE]


class Wire(frames.FrameSocket):
    """The engine's end, which blocks. Any thread may call `send`, one thread `receive`."""

    def send(self, message: FromEngine) -> None:
        """Write one message. Raises OSError when the service is gone."""
        self.write(frame(message))

    def receive(self) -> ToEngine | None:
        """Return the next message; None when the service has closed its end."""
        try:
            value, data = self.read()
        except OSError:
            return None
        return cast(ToEngine, from_json(value, data))
