"""One replica under a virtual clock: the engine's loop of plan, step and commit, with costs in place of a model."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf, log

from model.batch import PoolSpec, Slice, SliceOutput, StepBatch, StepOutput
from model.sampling_params import SamplingParams
from service.commands.simulate.costs import Costs
from service.commands.simulate.requests import Request
from service.engine.budget import PromptBudget
from service.engine.messages import Submit, Update
from service.engine.scheduling.skipping import SkippingScheduler, visible

GAP_CLASS = 1.01
"""Times between tokens are counted in classes. The limits of a class have this ratio: an error of 1 % at most."""
NOTHING = SliceOutput()


@dataclass(slots=True)
class Served:
    """What became of a request. `first` and `end` are seconds since the start, infinite if it was `refused`: "queue"
    because too many were in flight, "length" because it could never run.
    `queued` is the time in seconds until its first admission, `cached` the number of its tokens from the cache.
    """

    request: Request
    first: float = inf
    end: float = inf
    queued: float = 0.0
    cached: int = 0
    refused: str = ""

    @property
    def first_token(self) -> float:
        """Seconds from the arrival to the first token."""
        return self.first - self.request.at

    @property
    def inter_token(self) -> float:
        """Mean seconds between two tokens; 0 for a single token."""
        return (self.end - self.first) / (self.request.n_output - 1) if self.request.n_output > 1 else 0.0


def gap_class(seconds: float) -> int:
    return ceil(log(seconds) / log(GAP_CLASS) - 1e-9)


def gap_seconds(number: int) -> float:
    """The upper limit of a class."""
    return GAP_CLASS**number


class Replica:
    """A scheduler, its clock and what it did. Call `run` and `submit` in the order of time.

    `gaps` counts the times between two tokens of a request by `gap_class`. `busy` is the time with a step in flight.
    """

    def __init__(self, costs: Costs, max_queue: int) -> None:
        info = costs.engine
        self._now = 0.0
        self._prompts = PromptBudget(info.target_inter_token)
        self.scheduler = SkippingScheduler(
            info,
            max_sequences=info.max_sequences,
            max_step_tokens=info.max_step_tokens,
            clock=lambda: self._now,
            prompts=self._prompts,
        )
        self.gaps: Counter[int] = Counter()
        self.in_flight = self.steps = self.tokens = self.most_waiting = 0
        self.busy = 0.0
        self._costs = costs
        self._pools = info.pools
        self._capacity = info.max_sequences + max_queue
        self._served: dict[int, Served] = {}
        self._stalled: dict[int, float] = {}  # preempted sequences, with the time of their latest token
        self._batch: StepBatch | None = None  # the step in flight
        self._n_tokens = 0  # of the step in flight
        self._seconds = 0.0  # of the step in flight

    def submit(self, number: int, served: Served) -> None:
        """A request arrives. The service refuses it if too many are in flight, the scheduler if it can never run."""
        if self.in_flight >= self._capacity:
            served.refused = "queue"
            return
        request, before = served.request, self._now
        params = SamplingParams(temperature=0.0, max_tokens=request.n_output)
        self._now = request.at
        try:
            self.scheduler.submit(Submit(number, request.prompt(number), params, tenant=request.tenant))
        except ValueError:
            served.refused = "length"
            return
        finally:
            self._now = request.at if self._batch is None else before
        self._served[number] = served
        self.in_flight += 1
        self.most_waiting = max(self.most_waiting, self.scheduler.n_waiting)

    def run(self, until: float) -> None:
        """Steps until this time. A step that is then in flight stays so."""
        while True:
            if self._batch is None:
                if not self.scheduler.has_work or self._now >= until:
                    return
                self._launch()
            if self._now + self._seconds > until:
                return
            self._land()

    def _launch(self) -> None:
        """Plan a step at the present time."""
        scheduler, now = self.scheduler, self._now
        self._batch = scheduler.plan()
        for sequence_id in scheduler.preempted:
            self._stalled.setdefault(sequence_id, now)
        tokens, sequences, keys, pairs = features(self._batch, self._pools)
        n_quiet, quiet_keys = scheduler.n_quiet, scheduler.quiet_keys / len(self._pools)
        tokens += n_quiet
        self._seconds = self._costs.seconds(tokens, sequences + n_quiet, keys + quiet_keys, pairs + quiet_keys)
        self._n_tokens = tokens
        self.tokens += tokens

    def _land(self) -> None:
        """Commit the step in flight at its end."""
        assert self._batch is not None
        n_quiet, seconds = self.scheduler.n_quiet, self._seconds
        self._now += seconds
        self.busy += seconds
        self.steps += 1
        n_prompt = self._batch.n_prompt
        self._prompts.note(self._n_tokens - n_prompt, n_prompt, self._batch.n_pairs, seconds)
        updates = self.scheduler.commit(StepOutput(tuple(map(_sampled, self._batch.slices))))
        self._batch = None
        n_next = n_quiet + sum([self._note(update) for update in updates])
        if n_next:
            self.gaps[gap_class(seconds)] += n_next

    def _note(self, update: Update) -> bool:
        """Take note of a token; returns whether the one before it came from the step before."""
        served, follows = self._served[update.id], False
        if update.queued is not None:
            served.first, served.queued = self._now + self._costs.request, update.queued
            served.cached = update.cached or 0
            self._stalled.pop(update.id, None)
        elif update.id in self._stalled:
            self.gaps[gap_class(self._now - self._stalled.pop(update.id))] += 1
        else:
            follows = True
        if update.finish:
            served.end = self._now + self._costs.request
            del self._served[update.id]
            self.in_flight -= 1
        return follows


def features(batch: StepBatch, pools: Sequence[PoolSpec]) -> tuple[int, int, float, float]:
    """What the cost of a step depends on, as `Line.seconds` takes it."""
    tokens = keys = pairs = 0
    for item in batch.slices:
        tokens += item.stop - item.start
        last = visible(pools, item.stop - 1)
        keys += last
        pairs += last if item.stop - item.start == 1 else _pairs(pools, item)
    return tokens, len(batch.slices), keys / len(pools), pairs / len(pools)


def _sampled(item: Slice) -> SliceOutput:
    if item.stop < len(item.tokens):
        return NOTHING
    return SliceOutput((SkippingScheduler.answer(item.sequence_id),))


def _pairs(pools: Sequence[PoolSpec], item: Slice) -> int:
    """Number of keys that the tokens of a chunk attend to, the sum over tokens and pools."""
    return sum(_seen(pool.window, item.stop) - _seen(pool.window, item.start) for pool in pools)


def _seen(window: int | None, length: int) -> int:
    """Number of keys that the first `length` tokens attend to: each token sees itself and those before it."""
    rising = length if window is None else min(length, window)
    return rising * (rising + 1) // 2 + (length - rising) * rising
