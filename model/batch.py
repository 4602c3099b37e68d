"""The seam between scheduler and network: plain data and one protocol. No torch.

A step computes the next tokens of several sequences. Prefill and decode are not two phases: a `Slice` of one token and
a `Slice` of five hundred differ only in length.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from model.media import AudioFormat, ImageFormat, MediaWork, PlacedMedia
from model.sampling_params import SamplingParams
from model.token_counts import TokenCounts

PAGE_SIZE = 32
"""Positions of a page, unless the attention backend needs another number."""
SHORT = 16
"""The greatest number of tokens of a short slice: on a GPU many programs share its keys."""
GRAPH_ROWS = 768
"""The greatest number of rows of a step with prompts that a CUDA graph computes."""
BROKEN_NUMBERS = "the model's numbers for this request are not finite"
"""The fault of a slice whose keys and values may be broken too: nothing of its sequence is reused."""
UNKNOWN = -1
"""Stands for a sequence's last token while the step that samples it is still running, and for a draft token that the
runner is to find."""


class PageTable(NamedTuple):
    """Pages of one sequence in one pool, in logical order.

    `pages[i]` holds position `(first_block + i) * page_size` and the `page_size - 1` after it. The blocks before
    `first_block` have left the window. Worked example: page_size 4, window 5, next position 9. Positions 5..8 are
    still visible. They are in blocks 1 and 2: `first_block` is 1, and there are two pages. The scheduler gives an array
    of 64-bit integers, which is copied whole.
    """

    first_block: int
    pages: Sequence[int]


class Slice(NamedTuple):
    """Positions `start..stop-1` of one sequence, to be computed in this step. A snapshot: it never changes.

    `tokens` are the tokens of the sequence when the step was planned, prompt first: `len(tokens) >= stop`. The last
    `n_draft` of them are draft tokens. A slice with draft tokens ends with the last of them. If these are UNKNOWN, the
    runner finds them, and the slice has one token before them.
    `tables` has one entry for each pool, in the order of `RunnerInfo.pools`. It has a page for position `stop - 1`.
    `choice` is the number of the sequence among the choices of its request. The seed, the choice and the output index
    fix the noise with which a token is sampled.
    `media` are those whose spans overlap `start..stop-1`; each is encoded when the slice is computed.
    `adapter` is the number of the LoRA adapter that the request uses, 0 for none.
    `counts` belong to the sequence, whose slices share them. Without, penalties count all tokens anew.
    """

    sequence_id: int
    tokens: Sequence[int]
    n_prompt: int
    start: int
    stop: int
    tables: tuple[PageTable, ...]
    params: SamplingParams
    choice: int = 0
    n_draft: int = 0
    media: tuple[PlacedMedia, ...] = ()
    adapter: int = 0
    counts: TokenCounts | None = None

    @property
    def samples(self) -> tuple["Slice", ...]:
        """Return a slice for each token to sample: after the last known token without draft, after each draft token.

        Empty if the slice ends before the last known token, or if the output has `max_tokens` already.
        """
        if self.stop < len(self.tokens) or self.stop - self.n_draft - self.n_prompt >= self.params.max_tokens:
            return ()
        if not self.n_draft:
            return (self,)
        first = self.stop - self.n_draft
        return tuple(self._replace(stop=first + n, n_draft=n) for n in range(self.n_draft + 1))

    @property
    def awaits_draft(self) -> bool:
        """Return whether the runner is to find the draft tokens."""
        return self.n_draft > 0 and self.tokens[self.stop - 1] == UNKNOWN

    @property
    def scores_prompt(self) -> bool:
        """Return whether this slice gives logprobs of prompt tokens."""
        return self.params.prompt_logprobs is not None and self.start < self.n_prompt - 1


class PageCopy(NamedTuple):
    """A page of one pool to copy onto another, which no slice of earlier steps can see."""

    pool: int
    source: int
    target: int


@dataclass(frozen=True, slots=True)
class StepBatch:
    """All slices of one step. No sequence is in it twice. A slice may read pages that slices before it write.

    `media` is the encoder's work, which comes before the slices. `forgotten` are numbers of media items whose
    embeddings, or whose unfinished work, nobody will need: the runner releases them first. `copies` come before all
    slices, one after the other, once, and also if the step then fails: slices may write to a source, and a source may
    be a later target.
    """

    slices: tuple[Slice, ...]
    media: tuple[MediaWork, ...] = ()
    forgotten: tuple[int, ...] = ()
    copies: tuple[PageCopy, ...] = ()

    @property
    def n_tokens(self) -> int:
        return sum(item.stop - item.start for item in self.slices)

    @property
    def n_prompt(self) -> int:
        """Count the tokens in chunks of several: of prompts, and of sequences that are computed again."""
        return sum([n for item in self.slices if (n := item.stop - item.start - item.n_draft) > 1])

    @property
    def n_pairs(self) -> float:
        """Count the pairs of one of these tokens and a key before it, without regard to windows."""
        parts = [(item.start, item.stop - item.n_draft) for item in self.slices]
        return sum([(stop - start) * (stop + start) / 2 for start, stop in parts if stop - start > 1])

    def __bool__(self) -> bool:
        """Return whether there is anything to do."""
        return bool(self.slices or self.media or self.forgotten or self.copies)


class TokenLogprob(NamedTuple):
    """Natural log probability of `token` under the model's own distribution, and the likeliest alternatives.

    `rank` is set for prompt tokens only: 1 for the likeliest token.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int | None = None


class SliceOutput(NamedTuple):
    """The result of one slice: sampled tokens (none if `Slice.samples` is empty) and the requested logprobs.

    `tokens` holds the accepted draft tokens, then one more token. Sampling one token a step gives the same tokens.
    `logprobs` has one entry for each token, or is empty. `prompt_logprobs[i]` belongs to the prompt token at position
    `Slice.start + 1 + i`; it stops at the prompt's end.
    `pooled` [dim] is set for embeddings. It is the sum over the slice of hidden states after the last norm ("mean"), or
    the state at the prompt's last position ("last"; empty before it).
    `failure` says why no token could be sampled after `tokens`. The client reads it, and the sequence ends.
    `fault` says the same where the request is not to blame: the step raised for this slice, or its numbers are not
    finite, or the process that follows its grammar is lost. The sequence ends.
    """

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    failure: str | None = None
    pooled: tuple[float, ...] = ()
    fault: str | None = None

    @property
    def ends(self) -> bool:
        """Return whether there is a failure or a fault."""
        return self.failure is not None or self.fault is not None


@dataclass(frozen=True, slots=True)
class StepOutput:
    """The results of a step: one `SliceOutput` for each slice, in order.

    `media_faults` says for the number of a media item why it could not be encoded; sequences that need it end.
    Draft tokens that the runner was to find took so many `draft_passes`, and `draft_seconds` together.
    """

    slices: tuple[SliceOutput, ...]
    media_faults: Mapping[int, str] = field(default_factory=dict)
    draft_passes: int = 0
    draft_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """One pool of pages: all layers with this attention window (None: full attention)."""

    window: int | None
    n_pages: int


def max_pages(window: int | None, n_tokens: int, page_size: int, chunk: int) -> int:
    """Return the greatest number of pages in one pool of a sequence of `n_tokens`, at `chunk` tokens a step.

    Worked example: window 5, page_size 4, chunk 4: ceil((5 - 1 + 4) / 4) + 1 = 3, for any length.
    """
    whole = -(-n_tokens // page_size)
    return whole if window is None else min(whole, -(-(window - 1 + chunk) // page_size) + 1)


PREFIX_QUEUE_BYTES = 2**27
"""Bytes of pages that may wait to be written to `PrefixFiles`."""


@dataclass(frozen=True, slots=True)
class PrefixFiles:
    """The place of full pages on disk: in `directory`, which holds at most `limit` bytes.

    Pages of another `fingerprint` have other bytes for the same tokens. `about` describes it for people.
    """

    directory: str
    limit: int
    fingerprint: str
    about: str


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """Facts about a loaded model for the scheduler and the service.

    `max_model_len` is the greatest length of prompt plus output, `vocab_size` the width of the logits, `dim` the width
    of hidden states.
    `description` is for people: texts and numbers on backend, dtype, device, scheme. The log and `/version` report it.
    A step may have `max_sequences` slices and `max_step_tokens` tokens: memory is reserved for as many.
    With `runs_ahead`, a step may be launched while the step before it runs. Its slices may then end in UNKNOWN.
    `images` is None for a model without an image encoder, `audio` for one without an audio encoder. The embeddings of
    all that is encoded may fill `media_tokens` positions. Running sequences may use `max_adapters` LoRA adapters at a
    time.
    With a `pipeline` of several stages, as many steps or more may be in flight, each over other sequences.
    Chunks of prompts aim at `target_first_token` seconds until a request's first token, and at `target_inter_token`
    between two tokens of the sequences that decode; 0 is no target.
    With `copies_pages`, a prompt may begin inside a page that is copied, because that is faster than to compute it.
    `prompt_lookup_num_tokens` is the parameter's value for requests without one. The runner finds `own_draft_tokens` of
    a slice at most; `drafter` names how. With `prefixes`, pages go to disk.
    """

    page_size: int
    pools: tuple[PoolSpec, ...]
    max_model_len: int
    vocab_size: int
    dim: int
    max_sequences: int
    max_step_tokens: int
    description: dict[str, Any]
    runs_ahead: bool = False
    images: ImageFormat | None = None
    audio: AudioFormat | None = None
    media_tokens: int = 0
    max_adapters: int = 0
    pipeline: int = 1
    target_first_token: float = 0.0
    target_inter_token: float = 0.0
    copies_pages: bool = False
    prompt_lookup_num_tokens: int = 0
    own_draft_tokens: int = 0
    drafter: str = "self"
    prefixes: PrefixFiles | None = None

    @property
    def media(self) -> ImageFormat | AudioFormat | None:
        """Return the format that the encoder reads, if there is one."""
        return self.images or self.audio


class StepTooLarge(MemoryError):
    """A step does not fit into memory; fewer tokens may. The work of its encoder is done, but for `media_faults`."""

    def __init__(self, media_faults: Mapping[int, str] = MappingProxyType({})) -> None:
        super().__init__("a step does not fit into memory")
        self.media_faults = media_faults


class DeviceLost(RuntimeError):
    """The device computes nothing more for this process: another process has to go on."""


class LoadedAdapters(Protocol):
    """The LoRA adapters of a model, by number. Any thread may call this while a step runs."""

    def load(self, number: int, path: str) -> None:
        """Read an adapter, which slices may use from now on. Raises ModelError for one that does not fit the model."""
        ...

    def unload(self, number: int) -> None:
        """Forget an adapter that no sequence uses any more."""
        ...

    def has(self, number: int) -> bool:
        """Return whether an adapter is in memory: the next step need not read it."""
        ...

    def read_again(self, number: int, running: Collection[int]) -> None:
        """Read an adapter again that has left the memory. None of `running` leaves it. Raises ModelError."""
        ...

    def fingerprint(self, number: int) -> str:
        """Return a hash of the adapter's files. It stays when the number is that of another adapter."""
        ...


class PageBytes(Protocol):
    """The content of pages as bytes, which only a runner with the same `PrefixFiles.fingerprint` can use."""

    def page_bytes(self, pool: int) -> int:
        """Return the bytes of a page in a pool."""
        ...

    def read(self, pool: int, page: int) -> Callable[[], memoryview]:
        """Copy a page as the launched steps leave it. The result waits for the copy; any thread may call it."""
        ...

    def write(self, pool: int, page: int, data: memoryview) -> None:
        """Fill a page that no launched step uses. Any thread may call it."""
        ...


class Runner(Protocol):
    """A loaded model. One thread calls `launch` and `idle`; another thread may call all else meanwhile."""

    info: RunnerInfo

    @property
    def adapters(self) -> LoadedAdapters:
        """Return its LoRA adapters."""
        ...

    @property
    def pages(self) -> PageBytes:
        """Return the bytes of its pages, for a runner in one process: ranks that share a model have a part each."""
        ...

    @property
    def grammar_restarts(self) -> int:
        """Count the restarts of the process that follows grammars."""
        ...

    @property
    def waits_for_grammars(self) -> bool:
        """Return whether a step waits for the process that follows grammars, which has limits of its own."""
        ...

    def prepare(self, params: SamplingParams) -> None:
        """Make what sequences with these parameters need besides the weights, before their first step.

        It does not hang: what it waits for has limits of its own.
        """
        ...

    def launch(self, batch: StepBatch) -> Callable[[], StepOutput]:
        """Start a step: compute every slice, write its keys and values to its pages, sample where a slice ends.

        The function that it returns waits for the result. Call it before the next launch, or, if the runner
        `runs_ahead`, right after the next launch. With a `pipeline`, several steps may be launched before the results
        are read, in the order of the launches. No two of them sample for one sequence; a chunk of a prompt may follow
        the chunk before it. Both functions raise the errors of the step. A step of at most `max_sequences` tokens is
        never a StepTooLarge. After DeviceLost no step can be computed.
        """
        ...

    def watch(self, lost: Callable[[str], None]) -> None:
        """Call `lost`, once and from any thread, with the reason when a process that computes with this one has ended.

        The steps in flight will not end then, and no other can start. Without such processes this does nothing.
        """
        ...

    def close(self) -> None:
        """Tell the processes of other hosts that the service ends in good order: they would wait for the next one.

        Any thread may call it, also during a step.
        """
        ...

    def idle(self) -> bool:
        """Do one piece of the work that can wait until no request runs; return whether there is more of it."""
        ...
