"""The seam between scheduler and network: plain data and one protocol. No torch.

A step computes, for each of several sequences, the next few tokens that the sequence lacks. There is no prefill
and no decode: a `Slice` of one token and a `Slice` of five hundred differ in nothing but length.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from model.sampling_params import SamplingParams

UNKNOWN = -1
"""Last of a sequence's tokens while the step that draws it is still being computed."""


@dataclass(frozen=True, slots=True)
class PageTable:
    """Pages of one sequence in one pool, in logical order.

    `pages[i]` holds positions `(first_block + i) * page_size` and the `page_size - 1` after it. Blocks before
    `first_block` have left the window. Worked example: page_size 4, window 5, next position 9: positions 5..8 are
    still visible, so blocks 1 and 2 are held: `first_block` 1, two pages.
    """

    first_block: int
    pages: Sequence[int]


@dataclass(frozen=True, slots=True)
class Slice:
    """Positions `start..stop-1` of one sequence, to be computed in this step. Nothing in it changes afterwards.

    `tokens` are all tokens of the sequence known when the step was planned, prompt first: `len(tokens) >= stop`.
    The last `n_draft` of them are not known but proposed; then the slice covers them all and draws.
    `tables` has one entry a pool, in the order of `RunnerInfo.pools`, with room for position `stop - 1`.
    `choice` numbers the sequence among the choices of its request; with the seed and the output index it fixes
    the noise of a draw.
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

    @property
    def draws(self) -> tuple["Slice", ...]:
        """One slice, without draft, for each token to be drawn: after the last known token, after each proposed one.

        Empty if the slice ends earlier or no more tokens are wanted.
        """
        if self.stop < len(self.tokens) or self.stop - self.n_draft - self.n_prompt >= self.params.max_tokens:
            return ()
        if not self.n_draft:
            return (self,)
        return tuple(replace(self, stop=self.stop - left, n_draft=0) for left in range(self.n_draft, -1, -1))

    @property
    def scores_prompt(self) -> bool:
        """Whether logprobs of prompt tokens are wanted from this slice."""
        return self.params.prompt_logprobs is not None and self.start < self.n_prompt - 1


@dataclass(frozen=True, slots=True)
class StepBatch:
    """All slices of one step; no sequence appears twice."""

    slices: tuple[Slice, ...]

    @property
    def n_tokens(self) -> int:
        return sum(item.stop - item.start for item in self.slices)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log probability of `token` under the model's own distribution, and the likeliest alternatives.

    `rank`, of tokens of a prompt, is one more than how many tokens are likelier.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class SliceOutput:
    """What one slice gave: drawn tokens (none unless `Slice.draws`) and the logprobs that were asked for.

    Of the draft `tokens` holds the first as many as were drawn in their place, then the one that was drawn after
    those: what drawing one token a step would have given. `logprobs` has one for each, or is empty.
    `prompt_logprobs[i]` belongs to the prompt token at position `Slice.start + 1 + i`; it stops at the prompt's end.
    `pooled` [dim], where an embedding is wanted, is the sum over the slice of hidden states after the last norm
    ("mean"), or the state at the prompt's last position ("last"; empty before it).
    `failure` says, for a person, why no token could be drawn after those in `tokens`: the sequence ends with it.
    """

    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    failure: str | None = None
    pooled: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class StepOutput:
    """One `SliceOutput` for each slice, in order."""

    slices: tuple[SliceOutput, ...]


@dataclass(frozen=True, slots=True)
class PoolSpec:
    """One pool of pages: all layers with this attention window (None: full attention)."""

    window: int | None
    n_pages: int


def most_pages(window: int | None, n_tokens: int, page_size: int, chunk: int) -> int:
    """Pages of one pool that a sequence of `n_tokens` holds at most at one time, computed `chunk` tokens a step.

    Worked example: window 5, page_size 4, chunk 4: ceil((5 - 1 + 4) / 4) + 1 = 3, however long.
    """
    whole = -(-n_tokens // page_size)
    return whole if window is None else min(whole, -(-(window - 1 + chunk) // page_size) + 1)


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """What the scheduler and the service must know of a loaded model.

    `max_model_len` is the longest prompt plus output that can be served, `vocab_size` the width of the logits, `dim`
    that of hidden states.
    `description` is for people: backend, dtype, device, scheme (shown in the log and in `/version`).
    A step may have `max_sequences` slices and `max_step_tokens` tokens: that is what memory was kept for.
    With `runs_ahead` a step may be launched before the one before it is done: its slices may end in UNKNOWN tokens.
    """

    page_size: int
    pools: tuple[PoolSpec, ...]
    max_model_len: int
    vocab_size: int
    dim: int
    max_sequences: int
    max_step_tokens: int
    description: dict[str, str]
    runs_ahead: bool = False


class Runner(Protocol):
    """A loaded model: computes steps. Owned by one thread, save `prepare`."""

    info: RunnerInfo

    def prepare(self, params: SamplingParams) -> None:
        """Make at leisure, on any other thread, what sequences with these parameters need beside the weights."""
        ...

    def launch(self, batch: StepBatch) -> Callable[[], StepOutput]:
        """Compute every slice, write its keys and values to its pages, draw where a slice draws.

        What is returned waits for the result, and is called before the next launch, or right after it if the runner
        `runs_ahead`. It may raise what the step met.
        """
        ...

    def rest(self) -> bool:
        """Do a piece of the work that can wait until nobody does; whether there is more of it."""
        ...
