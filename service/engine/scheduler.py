"""Who computes what in the next step. The only mutator of queues, sequences and page tables.

A step first serves every sequence that lacks a single token (it decodes), then longer lacks (prompt chunks) oldest
first, then admits from the waiting queue, up to `max_step_tokens`; what is left may go to drafts. When pages run out,
the youngest is preempted: it gives up its pages, keeps its tokens and waits before all that came after it. The queue
is in order of priority, then of arrival.
"""

import time
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable
from itertools import count
from operator import attrgetter

from model.batch import RunnerInfo, SliceOutput, StepBatch, StepOutput
from service.engine.messages import Stats, Submit, Update
from service.engine.pages import PagePool, reusable_blocks
from service.engine.prompt_lookup import Stakes
from service.engine.sequence import Sequence, Table

RANK = attrgetter("rank")


class _Step:
    """A planned step: sequence -> from where to where its known tokens are computed, and the draft behind them."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.parts: dict[Sequence, tuple[int, int]] = {}
        self.drafts: dict[Sequence, list[int]] = {}

    def add(self, sequence: Sequence, n_tokens: int) -> None:
        self.parts[sequence] = (sequence.computed, sequence.computed + n_tokens)
        self.budget -= n_tokens

    def drop(self, sequence: Sequence) -> None:
        if sequence in self.parts:
            start, stop = self.parts.pop(sequence)
            self.budget += stop - start


class Scheduler:
    """Queues and pages of one engine. `plan` and `commit` alternate, but for a second `plan` where `assume` allows it;
    `submit` and `abort` come between."""

    def __init__(
        self,
        info: RunnerInfo,
        *,
        max_sequences: int,
        max_step_tokens: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 1 <= max_sequences <= max_step_tokens:
            raise ValueError(f"max_sequences must be 1..max_step_tokens ({max_step_tokens}), got {max_sequences}")
        self.pools = tuple(PagePool(spec, info.page_size) for spec in info.pools)
        self._max_sequences = max_sequences
        self._max_step_tokens = max_step_tokens
        self._max_model_len = info.max_model_len
        self._clock = clock
        self._sequences: dict[int, Sequence] = {}  # running and waiting, by id
        self._waiting: list[Sequence] = []  # by rank, next first
        self._numbers = count()
        self._running: dict[Sequence, None] = {}  # an ordered set, oldest first
        self._planned: deque[_Step] = deque()  # not yet committed, oldest first
        self._preemptions = 0
        self._queried_tokens = 0
        self._hit_tokens = 0
        self._draft_tokens = 0
        self._accepted_draft_tokens = 0

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._waiting)

    def submit(self, request: Submit) -> None:
        """Queue a sequence. Raises ValueError for one that could never finish."""
        length = len(request.prompt) + request.params.max_tokens
        if not request.prompt or length > self._max_model_len:
            raise ValueError(f"prompt and max_tokens must be 1..{self._max_model_len} tokens together, got {length}")
        sequence = Sequence(request, self.pools, self._clock(), next(self._numbers))
        self._sequences[sequence.id] = sequence
        insort(self._waiting, sequence, key=RANK)

    def abort(self, sequence_id: int) -> None:
        """Forget a sequence and release its pages; an unknown id is fine."""
        if (sequence := self._sequences.get(sequence_id)) is not None:
            self._forget(sequence)

    def plan(self) -> StepBatch:
        """Choose the tokens of the next step and give their sequences the pages to write to."""
        step = _Step(self._max_step_tokens)
        for sequence in sorted(self._running, key=lambda item: item.lacks > 1):
            if step.budget and sequence in self._running and not sequence.complete:
                self._extend(sequence, step)
        while step.budget and self._waiting and len(self._running) < self._max_sequences and self._admit():
            self._extend(next(reversed(self._running)), step)
        self._speculate(step)
        if step.parts:
            self._planned.append(step)
        return StepBatch(
            tuple(sequence.slice(stop, step.drafts.get(sequence, ())) for sequence, (_, stop) in step.parts.items())
        )

    def assume(self) -> bool:
        """Take the planned step as done, so that the next can be planned while it is computed; False if that must wait.

        All that runs must be in the step and draw, after a single token, without a look at what was drawn before; and
        each must find a page to go on, since nobody is preempted whose token is not there yet.
        """
        step = self._planned[-1]
        if (
            step.drafts
            or len(step.parts) != len(self._running)
            or not all(map(self._samples_independently, step.parts.items()))
        ):
            return False
        for index, pool in enumerate(self.pools):
            if sum(item.tables[index].missing(stop + 1) for item, (_, stop) in step.parts.items()) > pool.available:
                return False
        for sequence in step.parts:
            sequence.assume()
        return True

    def commit(self, output: StepOutput) -> list[Update]:
        """Take in what the oldest planned step computed: append tokens, finish sequences, release pages."""
        updates, step = [], self._planned.popleft()
        for (sequence, part), result in zip(step.parts.items(), output.slices, strict=True):
            if sequence.id in self._sequences:  # else it ended while the step was computed
                update = self._advance(sequence, *part, result)
                if update is not None:
                    updates.append(update)
        for sequence in step.drafts:
            for table in sequence.tables:
                table.shrink(sequence.computed)
        return updates

    def fail_steps(self) -> list[Update]:
        """What was planned was not computed: end its sequences with an error, keep the others."""
        failed = dict.fromkeys(item for step in self._planned for item in step.parts if item.id in self._sequences)
        self._planned.clear()
        for sequence in failed:
            self._forget(sequence)
        return [Update(sequence.id, finish="error") for sequence in failed]

    def stats(self, step_tokens: int = 0, step_seconds: float = 0.0) -> Stats:
        return Stats(
            running=len(self._running),
            waiting=len(self._waiting),
            step_tokens=step_tokens,
            step_seconds=step_seconds,
            preemptions=self._preemptions,
            queried_tokens=self._queried_tokens,
            hit_tokens=self._hit_tokens,
            draft_tokens=self._draft_tokens,
            accepted_draft_tokens=self._accepted_draft_tokens,
            pools=tuple(pool.stats for pool in self.pools),
        )

    def check_idle(self) -> None:
        """Raise AssertionError unless the pages add up and, with no work left, nothing is held."""
        for pool in self.pools:
            pool.check()
            assert self.has_work or pool.stats.held == 0, f"{pool.stats.held} pages are held by nobody"

    @staticmethod
    def _samples_independently(planned: tuple[Sequence, tuple[int, int]]) -> bool:
        sequence, (start, stop) = planned
        samples = stop == sequence.length and sequence.n_output < sequence.params.max_tokens
        return samples and stop - start == 1 and sequence.params.independent_of_output

    def _extend(self, sequence: Sequence, step: _Step) -> None:
        """Put the sequence's next tokens into the step, as many as budget and pages allow."""
        wanted = min(sequence.lacks, step.budget)
        while (room := min(table.fits() for table in sequence.tables) - sequence.computed) < 1:
            victim = next(reversed(self._running))
            step.drop(victim)
            self._preempt(victim)
            if victim is sequence:
                return
        n_tokens = min(wanted, room)
        for table in sequence.tables:
            table.grow(sequence.computed + n_tokens)
        step.add(sequence, n_tokens)

    def _speculate(self, step: _Step) -> None:
        """Let slices that draw go on with guesses that pay, from the budget and the pages that all else has left."""
        stakes = Stakes(self._max_step_tokens - step.budget)
        for sequence, (_, stop) in step.parts.items():
            params = sequence.params
            most = min(params.prompt_lookup_num_tokens, params.max_tokens - sequence.n_output - 1)
            if most < 1 or stop < sequence.length:
                continue
            guesses = sequence.lookup.guess(sequence.tokens, most)
            room = min(table.fits() for table in sequence.tables) - stop
            n_tokens = stakes.bet(sequence.lookup.trust, min(len(guesses), step.budget, room))
            if n_tokens:
                for table in sequence.tables:
                    table.grow(stop + n_tokens)
                step.drafts[sequence] = guesses[:n_tokens]
                step.budget -= n_tokens
                self._draft_tokens += n_tokens

    def _forget(self, sequence: Sequence) -> None:
        sequence.reset()
        del self._sequences[sequence.id]
        if sequence in self._running:
            del self._running[sequence]
        else:
            del self._waiting[bisect_left(self._waiting, sequence.rank, key=RANK)]

    def _preempt(self, sequence: Sequence) -> None:
        sequence.reset()
        del self._running[sequence]
        insort(self._waiting, sequence, key=RANK)
        self._preemptions += 1

    def _admit(self) -> bool:
        """Move the head of the queue to the running sequences if its known tokens have room, reusing pages."""
        sequence = self._waiting[0]
        reused = self._reuse(sequence)
        if not self._has_room(sequence):
            sequence.reset()
            return False
        del self._waiting[0]
        self._running[sequence] = None
        if sequence.queued is None:
            sequence.queued = self._clock() - sequence.arrived
            sequence.cached = reused
            self._queried_tokens += sequence.n_prompt
            self._hit_tokens += reused
        return True

    def _reuse(self, sequence: Sequence) -> int:
        """Share pages that already hold the sequence's first tokens; at least one token is left to compute."""
        if not sequence.skips:
            return 0
        size = self.pools[0].page_size
        names = sequence.names((len(sequence.tokens) - 1) // size)
        names = names[: reusable_blocks(self.pools, names)]
        for table in sequence.tables:
            table.share(names)
        sequence.computed = len(names) * size
        return sequence.computed

    def _has_room(self, sequence: Sequence) -> bool:
        """Whether the sequence's tokens fit beside what the running ones still lack, plus a page to grow for each."""
        unfinished = [item for item in self._running if item.lacks > 1]
        for index, table in enumerate(sequence.tables):
            promised = sum(self._to_come(item, item.tables[index]) for item in unfinished) + len(self._running)
            if table.pool.available < self._to_come(sequence, table) + promised:
                return False
        return True

    def _to_come(self, sequence: Sequence, table: Table) -> int:
        """Pages that the sequence will take beyond those it has until all its known tokens are computed."""
        most = table.pool.most_blocks(sequence.length, self._max_step_tokens)
        return min(table.missing(sequence.length), most - len(table.pages))

    def _advance(self, sequence: Sequence, start: int, stop: int, result: SliceOutput) -> Update | None:
        if result.failure is not None:
            self._forget(sequence)
            return Update(sequence.id, finish="error", failure=result.failure)
        processed = min(stop, sequence.n_prompt) if sequence.reports else None
        tokens = self._take_in(sequence, stop, result.tokens)
        sequence.advance(start, stop + max(0, len(tokens) - 1))
        prompt_logprobs = result.prompt_logprobs[max(0, sequence.scored - start - 1) :]
        sequence.scored += len(prompt_logprobs)
        if result.pooled:
            sequence.pool(result.pooled)
        finish = _finish_reason(sequence, stop, tokens)
        embedding = sequence.embedding if finish is not None else ()
        if finish is not None:
            self._forget(sequence)
        if not tokens and finish is None and not prompt_logprobs and processed is None:
            return None
        first, sequence.first_update = sequence.first_update, False
        return Update(
            id=sequence.id,
            tokens=tokens,
            logprobs=result.logprobs[: len(tokens)],
            prompt_logprobs=prompt_logprobs,
            finish=finish,
            cached=sequence.cached if first else None,
            queued=sequence.queued if first else None,
            processed=processed,
            embedding=embedding,
        )

    def _take_in(self, sequence: Sequence, stop: int, drawn: tuple[int, ...]) -> tuple[int, ...]:
        """Put the drawn tokens, up to the first that ends it, at position `stop`; all but the last are computed."""
        if sequence.params.prompt_lookup_num_tokens:
            self._accepted_draft_tokens += max(0, len(drawn) - 1)
            sequence.lookup.judge(drawn)
        ends = [index for index, token in enumerate(drawn) if token in sequence.stop_tokens]
        tokens = drawn[: ends[0] + 1] if ends else drawn
        if tokens:
            sequence.append(tokens)
        return tokens


def _finish_reason(sequence: Sequence, stop: int, tokens: tuple[int, ...]) -> str | None:
    if tokens and tokens[-1] in sequence.stop_tokens:
        return "stop"
    if stop >= sequence.n_prompt and stop + len(tokens) - sequence.n_prompt >= sequence.params.max_tokens:
        return "length"
    return None
