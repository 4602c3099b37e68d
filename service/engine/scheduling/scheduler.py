"""The scheduler chooses the tokens of each step. It alone changes queues, sequences and page tables.

A step computes up to `max_step_tokens` tokens. First come the sequences that decode, one token each, then prompt
chunks, the oldest sequence first. Beside sequences that decode `PromptBudget` limits them. A chunk ends before an image
or audio that is not encoded; work on that then takes its budget. Then the scheduler admits sequences from the waiting
queue, which shares the engine fairly between tenants and bounds the LoRA adapters of a step. Draft tokens take what is
left. When pages run out, the scheduler preempts the youngest sequence: it releases the pages, keeps the
tokens and puts the sequence back into the queue at its old place.

Several steps may be in flight. The device, or each stage of a pipeline, computes them in the order of their plans. So
chunks of one prompt may follow each other, and a page that one step releases may be written by the next. A runner that
runs ahead has the next step in flight beside the one that it computes: a sequence that samples goes on after a token
that is not known yet (`assume`). A pipeline has a step for each of its stages. These share `max_step_tokens`, and the
sequences that decode, evenly; no sequence samples in two of them.
"""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, count

from model.batch import BROKEN_NUMBERS, RunnerInfo, SliceOutput, StepBatch, StepOutput
from service.engine.messages import AGAIN, Admitted, DraftCount, Stats, Submit, Update
from service.engine.picture import Reason
from service.engine.prefixes.store import PrefixStore
from service.engine.scheduling.budget import PromptBudget, StepLimit, prompt_work
from service.engine.scheduling.drafts import Draft, DraftBudget, Drafters
from service.engine.scheduling.media import MediaStore, MediaTable
from service.engine.scheduling.page_changes import PageChanges
from service.engine.scheduling.prefix import Trail, copy_part, fits, promised, reuse, unname, withdraw
from service.engine.scheduling.queue import AdapterPlaces, Running, WaitingQueue
from service.engine.scheduling.sequence import Sequence
from service.engine.scheduling.step import Step
from service.engine.scheduling.stored import StoredPrefixes
from service.engine.scheduling.view import View

log = logging.getLogger("noria.engine")


class Scheduler:
    """Queues and pages of one engine.

    Each `plan` is followed by its `commit`, or at once by `retract`. With `RunnerInfo.pipeline` stages, as many plans
    may come before the first of their commits; without, one more if `assume` returns True. `submit` and `abort` may
    come between. `advanced` has the ids of the sequences that the latest `commit` brought forward. `adapter_ready` is
    `ready` of `AdapterPlaces`. `prompts` is told what the steps cost; without it nothing but `max_step_tokens` limits
    a step. Pages go to `store`, if there is one; `adapter_name` then says what stays the same of an adapter.
    """

    def __init__(
        self,
        info: RunnerInfo,
        *,
        max_sequences: int,
        max_step_tokens: int,
        clock: Callable[[], float] = time.monotonic,
        adapter_ready: Callable[[int, Collection[int]], bool] = lambda adapter, running: True,
        prompts: PromptBudget | None = None,
        store: PrefixStore | None = None,
        adapter_name: Callable[[int], str] = str,
    ) -> None:
        if not 1 <= max_sequences <= max_step_tokens:
            raise ValueError(f"max_sequences must be 1..max_step_tokens ({max_step_tokens}), got {max_sequences}")
        self._stored = StoredPrefixes(info.pools, info.page_size, store)
        self.pools = self._stored.pools
        self._adapter_name = adapter_name
        self._media = MediaStore(info)
        self._trail = Trail(self.pools)
        self.changes = PageChanges(self.pools)
        self.advanced: list[int] = []
        self.prompts = prompts or PromptBudget()
        self._max_sequences = max_sequences
        self._max_step_tokens = max_step_tokens  # of all steps in flight together
        self._limit = StepLimit(max_step_tokens, least=info.max_sequences)
        self._depth = info.pipeline  # steps in flight
        self._max_model_len = info.max_model_len
        self._copies_pages = info.copies_pages
        self._drafters = Drafters(info.own_draft_tokens, info.drafter)
        self._draft_tokens = info.prompt_lookup_num_tokens  # of sequences that do not say
        self._clock = clock
        self._sequences: dict[int, Sequence] = {}  # running and waiting, by id
        self._queue = WaitingQueue()
        self._adapters = AdapterPlaces(info.max_adapters, self._queue, adapter_ready)
        self._numbers = count()
        self._running = Running()
        self._planned: deque[Step] = deque()  # in flight, oldest first
        self._n_committed = 0
        self._returned: list[Update] = []
        self._places: dict[int, tuple[int, float]] = {}  # number and arrival of those that the service submits again
        self._totals: Counter[str] = Counter()  # by their names in Stats
        self._blocked: Reason | None = None  # why the latest plan admitted no more
        self._victim = 0  # the latest sequence that was preempted

    @property
    def has_work(self) -> bool:
        return bool(self._running or self._queue)

    @property
    def waits_for_files(self) -> bool:
        """Return whether an adapter or pages must be read before the next plan, if the latest plan was empty."""
        n_waiting = len(self._stored.waiting)
        return len(self._running) == n_waiting and bool(n_waiting or self._adapters.reading)

    @property
    def due(self) -> list[int]:
        """Return the ids of the sequences that should make progress: those that run, or all that wait if none runs."""
        if self._running:
            return [item.id for item in self._running if item not in self._stored.waiting]
        return [*self._sequences]

    def submit(self, request: Submit) -> None:
        """Queue the sequences of a request. Raises ValueError if they can never finish."""
        length = len(request.prompt) + request.params.max_tokens
        if not request.prompt or length > self._max_model_len:
            raise ValueError(f"prompt and max_tokens must be 1..{self._max_model_len} tokens together, got {length}")
        self._media.check_prompt(request)
        self._adapters.check(request.adapter)
        if self._draft_tokens and request.params.prompt_lookup_num_tokens is None:
            params = replace(request.params, prompt_lookup_num_tokens=self._draft_tokens)
            request = replace(request, params=params)
        now = self._clock()
        name = self._adapter_name(request.adapter) if request.adapter else ""
        inputs = self._media.cut(request)
        for index in range(request.n):
            media = MediaTable(self._media, request, inputs)
            place = self._places.pop(request.ids[index], None)
            number, arrived = place or (next(self._numbers), now)
            sequence = Sequence(request, index, self.pools, media, arrived, number, self._drafters, name)
            self._sequences[sequence.id] = sequence
            self._queue.add(sequence)

    def abort(self, sequence_id: int) -> None:
        """Forget a sequence and release its pages. An unknown id is no error."""
        self._places.pop(sequence_id, None)
        if (sequence := self._sequences.get(sequence_id)) is not None:
            self._forget(sequence)

    def note_adapter(self, adapter: int) -> None:
        """Take note that an adapter, which was not in memory, has been read, or cannot be."""
        self._adapters.note_read(adapter)

    def plan(self) -> StepBatch:
        """Choose the tokens of the next step and take the pages that they need."""
        self._take_stored()
        step = self._empty_step()
        budget = step.budget
        for sequence in self._running.in_order(self._depth, self._stored.waiting):
            if step.budget and sequence in self._running:
                self._extend(sequence, step)
        behind = self._stored.behind
        while step.budget and len(self._running) < self._max_sequences and (first := self._adapters.first(behind)):
            if self._admit(first, step):
                if first not in self._stored.waiting:
                    self._extend(first, step)
            elif first not in behind:
                break
        self._blocked = self._why_blocked(step) if self._queue else None
        if any(item.drafters for item in step.parts):
            # The chunks of prompts have no say: drafts would end wherever a prompt is computed in many steps.
            most = int(min(self._limit.now, self.prompts.pace.tokens(0))) // self._depth  # whatever the targets are
            step.budget = max(step.budget, most - (budget - step.budget))
            cost = self.prompts.cost
            pays = DraftBudget(len(step.sampling), cost.fixed_rows, cost.pass_rows)
            step.add_drafts(pays, len(self._in_flight()))
        step.media = self._media.take()
        if batch := step.batch():
            self._planned.append(step)
            for sequence, (_, stop) in step.parts.items():
                sequence.computed = stop
        return batch

    def assume(self) -> bool:
        """Take the latest planned step as done, so that the next can be planned while it is computed.

        Each sequence that samples in the step goes on after a token that is not known yet. Returns False if the next
        plan must wait, because one of them samples by parameters that read earlier output, or because there are fewer
        pages than running sequences need for one more token: those in flight cannot be preempted.
        """
        sampling = self._planned[-1].sampling
        if not all(item.params.independent_of_output for item in sampling):
            return False
        for index, pool in enumerate(self.pools):
            if sum([item.tables[index].stop <= item.computed for item in self._running]) > pool.available:
                return False
        for sequence in sampling:
            sequence.assume()
        return True

    def commit(self, output: StepOutput) -> list[Update]:
        """Take the result of the oldest planned step: append tokens, finish sequences, release pages."""
        step = self._planned.popleft()
        self._n_committed += 1
        self._limit.count()
        self._media.land(step.media)
        faulty = [item for item, result in zip(step.parts, output.slices, strict=True) if result.fault is not None]
        self._withdraw((step, *self._planned), faulty)
        updates = self._fail_media(output.media_faults)
        generated: Counter[tuple[int, str]] = Counter()  # tokens by priority and tenant
        for (sequence, (start, stop)), result in zip(step.parts.items(), output.slices, strict=True):
            if start < sequence.n_prompt or stop > start + 1:
                self._totals["prompt_tokens"] += stop - start
            if self._has(sequence):  # else it ended while the step was in flight
                sequence.last_step = self._n_committed
                draft = self._observe(sequence, step.drafts.get(sequence), result)
                update = self._break(sequence, result) if result.ends else self._advance(sequence, start, stop, result)
                if update is not None:
                    updates.append(update if draft is None else update._replace(draft=draft))
                    generated[sequence.priority, sequence.tenant] += len(update.tokens)
        for (priority, tenant), n_tokens in generated.items():
            self._queue.charge(priority, tenant, generated=n_tokens)
            self._totals["generated_tokens"] += n_tokens
        for sequence in step.drafts:
            for table in sequence.tables:
                table.shrink(sequence.computed)
        self.advanced = [item.id for item in (*step.parts, *self._behind_media(step))]
        return updates

    def retract(self, n_tokens: int, media_faults: Mapping[int, str]) -> list[Update]:
        """Take back the latest plan, of so many tokens, which did not fit into memory. The next plans are smaller.

        Its work on media is done, but for these faults.
        """
        step = self._planned.pop()
        for sequence, (start, _) in step.parts.items():
            sequence.computed = start
            for table in sequence.tables:
                table.shrink(start)
        self._withdraw((step,), dict.fromkeys(step.named.values()))
        self._limit.lower(n_tokens)
        self._media.land(step.media)
        return self._fail_media(media_faults)

    def fail_steps(self) -> list[Update]:
        """End the sequences of all planned steps, which were not computed, with an error. The others stay."""
        steps = [*self._planned]
        encoded = frozenset[int]().union(*(step.encoded for step in steps))
        failed = dict.fromkeys((*self._in_flight(), *self._running.holding(encoded)))
        self._planned.clear()
        for sequence in failed:
            self._forget(sequence)
        self._withdraw(steps, dict.fromkeys(chain.from_iterable(step.named.values() for step in steps)))
        self._media.fail(encoded)
        return [Update(sequence.id, finish="error") for sequence in failed]

    def take_returned(self) -> list[Update]:
        """Return the ends of the sequences, since the last call, that the service must submit again."""
        returned, self._returned = self._returned, []
        return returned

    def stats(self, step_tokens: int = 0) -> Stats:
        return Stats(
            running=len(self._running),
            waiting=len(self._queue),
            step_tokens=step_tokens,
            pools=tuple(pool.stats for pool in self.pools),
            adapters=self._adapters.stats,
            blocked=self._blocked,
            victim=self._victim,
            **self._totals,
            **self._stored.counts,
        )

    def view(self, preparing: Mapping[int, int]) -> View:
        """Return what a picture shows of this scheduler. `preparing` are sequences that it does not have yet."""
        return View(
            tuple(self._running),
            tuple(self._queue.ordered()),
            self._blocked,
            frozenset((*self._stored.waiting, *self._stored.behind)),
            {key: n_prompt for key, n_prompt in preparing.items() if key not in self._sequences},
        )

    def check_idle(self) -> None:
        """Raise AssertionError unless pages and media add up and, if no work is left, none of them is held."""
        for pool in self.pools:
            pool.check()
            assert self.has_work or pool.stats.held == 0, f"{pool.stats.held} pages are held by no sequence"
        self._media.check()
        assert self.has_work or self._media.n_held == 0, f"{self._media.n_held} media are held by no sequence"

    def save_pages(self, seconds: float | None = None) -> None:
        """Save some of the pages that are not on disk; with `seconds` all of them, in so many seconds at most."""
        if seconds is None:
            self._stored.save_some()
        else:
            self._stored.save_all(seconds)

    def _empty_step(self) -> Step:
        """Return the next step with its budgets. Steps in flight share them, and the sequences that decode, evenly."""
        unfinished = self._running.unfinished
        n_decoding = len(self._running) - len(unfinished)
        # Each running sequence must make progress, however slow the machine is: a prompt in each step in flight.
        needed = n_decoding + bool(unfinished) * self._depth
        depth = unfinished[0].computed if unfinished else 0
        own = [item.between or self.prompts.between for item in self._running if item.n_output]
        self.prompts.strictest = min(own, default=self.prompts.between)
        tokens = self.prompts.step_tokens(self._limit.now, needed, n_decoding, depth, self._waiting(unfinished))
        for_media = min(tokens, self._for_media(unfinished, n_decoding, depth))
        return Step(max(1, tokens // self._depth), max(1, int(for_media) // self._depth))

    def _for_media(self, unfinished: list[Sequence], n_decoding: int, depth: int) -> float:
        """Return the tokens of the next steps for prompts with media: what decoding leaves, or half of it.

        While text waits for tokens, media get half. That text counts as a row that decodes: its step is to be short.
        """
        queued = self._queue.ordered() if self._blocked in (None, "tokens") else ()
        text_waits = any(not item.awaits_media for item in chain(unfinished, queued))
        return self.prompts.spare(max(n_decoding, text_waits), depth) / (1 + text_waits)

    def _waiting(self, unfinished: list[Sequence]) -> Iterator[tuple[float, float]]:
        """Yield for each prompt before its first token, in order: the seconds since it came, and the work that is left.

        It leaves out prompts that a target cannot hurry: those with media to compute, or with a first token already.
        """
        now = self._clock()
        for item in chain(unfinished, self._queue.ordered()):
            if item.n_output or item.awaits_media:
                continue
            n_tokens = item.uncomputed
            late = self.prompts.first - item.first if item.first else 0.0  # as if it had come so much earlier
            yield now - item.arrived + late, prompt_work(n_tokens, n_tokens * (item.computed + item.length) / 2)

    def _why_blocked(self, step: Step) -> Reason:
        """Return why the head of the queue waits, once the step is planned: see `Reason`."""
        if len(self._running) >= self._max_sequences:
            return "sequences"
        if not step.budget:
            return "tokens"
        return "pages" if self._adapters.first(self._stored.behind) else "adapters"

    def _in_flight(self) -> dict[Sequence, None]:
        """Return the sequences of the steps in flight that have not ended, in order."""
        return {item: None for step in self._planned for item in step.parts if self._has(item)}

    def _has(self, sequence: Sequence) -> bool:
        """Return whether a sequence has not ended. Another one has its id if the service has submitted it again."""
        return self._sequences.get(sequence.id) is sequence

    def _withdraw(self, steps: Collection[Step], owners: Iterable[Sequence]) -> None:
        """Let nobody keep a page that these sequences did not compute in these steps."""
        for sequence in withdraw(steps, owners, self.pools, self._running):
            self._return(sequence)

    def _extend(self, sequence: Sequence, step: Step) -> None:
        """Add the sequence's next tokens to the step, as many as budget, media and pages allow."""
        limit = min(sequence.uncomputed, step.left(sequence))
        if sequence.media.spans and (sequence.awaits_media or sequence.media.in_flight) and limit:
            limit, cost = sequence.media.plan(sequence.computed, limit, step.left(sequence))
            step.spend(sequence, cost)
            self._queue.charge(sequence.priority, sequence.tenant, prompt=cost)
            limit = min(limit, step.left(sequence))
        if limit and min([table.stop for table in sequence.tables]) < sequence.computed + limit:
            limit = self._take_pages(sequence, limit, step)
        if limit and (full := step.add(sequence, limit)):
            self._trail.note(sequence, full, sequence.computed + limit)

    def _take_pages(self, sequence: Sequence, limit: int, step: Step) -> int:
        """Take the pages of up to `limit` tokens; returns for how many. Without any, preempt the youngest sequence."""
        while (available := min(table.capacity() for table in sequence.tables) - sequence.computed) < 1:
            victim = next(reversed(self._running))
            if victim in self._in_flight():
                return 0  # its step lands first
            unname((step,), victim, self.pools)  # sequences that share its pages are admitted later, and preempt nobody
            step.drop(victim)
            self._preempt(victim)
            if victim is sequence:
                return 0
        n_tokens = min(limit, available)
        for table in sequence.tables:
            table.grow(sequence.computed + n_tokens)
        return n_tokens

    def _behind_media(self, step: Step) -> list[Sequence]:
        """Return the prompts that stand still for media in this step. However long it takes, they are not stuck."""
        return self._running.unfinished if step.media.work or step.media.waits or not step.media_budget else []

    def _fail_media(self, faults: Mapping[int, str]) -> list[Update]:
        """End the sequences that need a media item that could not be encoded."""
        updates = []
        for sequence in self._running.holding(faults):
            fault = next(faults[number] for number in sequence.media.held if number in faults)
            self._forget(sequence)
            updates.append(Update(sequence.id, finish="error", fault=fault))
        self._media.fail(faults)
        return updates

    def _forget(self, sequence: Sequence) -> None:
        if sequence.admitted is not None:
            self._trail.note_end(sequence)
        if sequence.answers is not None:
            sequence.answers.add(sequence.tokens[sequence.n_prompt :])
        self._release(sequence)
        del self._sequences[sequence.id]
        if sequence in self._running:
            del self._running[sequence]
            self._adapters.leave(sequence)
        else:
            self._queue.remove(sequence)

    def _release(self, sequence: Sequence) -> None:
        self._stored.note_end(sequence, sequence.computed)
        self._stored.cancel(sequence)
        sequence.reset()

    def _requeue(self, sequence: Sequence) -> None:
        """Put a running sequence back into the queue, to be computed again."""
        self._release(sequence)
        del self._running[sequence]
        self._adapters.leave(sequence)
        self._queue.add(sequence)

    def _return(self, sequence: Sequence) -> None:
        """Let the service submit a running sequence again, at its old place."""
        self._forget(sequence)
        self._places[sequence.id] = (sequence.number, sequence.arrived)
        self._returned.append(Update(sequence.id, finish=AGAIN))

    def _preempt(self, sequence: Sequence) -> None:
        self._totals["lost_tokens"] += sequence.computed
        self._victim = sequence.id
        if sequence.media.passed:
            self._return(sequence)
        else:
            self._requeue(sequence)
        self._totals["preemptions"] += 1
        log.debug("sequence %d is preempted at %d tokens: no page is left", sequence.id, sequence.length)

    def _admit(self, sequence: Sequence, step: Step) -> bool:
        """Move a waiting sequence to the running ones if there are pages for its tokens, and none to wait for."""
        chunk = self._max_step_tokens
        kept = promised(len(self.pools), self._running.unfinished, len(self._running), chunk)
        if any(pool.available <= n for pool, n in zip(self.pools, kept, strict=True)):
            return False  # it needs a page of its own
        reuse(sequence, self.pools)
        if self._stored.awaited(sequence) or not fits(sequence, kept, chunk):
            sequence.reset()
            return False
        reads = self._stored.begin(sequence)
        if self._copies_pages and not reads:
            step.copies += copy_part(sequence, self._trail, (step, *self._planned))
        self._queue.remove(sequence)
        self._running[sequence] = None
        self._adapters.enter(sequence)
        if not reads:
            self._begin(sequence)
        return True

    def _take_stored(self) -> None:
        """Let the sequences go on whose pages have been read, and queue those again whose pages cannot be."""
        for sequence, whole in self._stored.arrived():
            if whole:
                self._begin(sequence)
            else:
                self._requeue(sequence)

    def _begin(self, sequence: Sequence) -> None:
        """Count a sequence that has its place among the running ones, and all that it reuses."""
        reused = sequence.computed
        log.debug("sequence %d is admitted: %d tokens, %d of them cached", sequence.id, sequence.length, reused)
        self._stored.note_end(sequence, reused)
        if sequence.admitted is None:
            sequence.own_tokens()
            from_disk = 0 if sequence.in_memory is None else max(0, reused - sequence.in_memory)
            n_reused = reused // self.pools[0].page_size
            miss = self._trail.miss(sequence, n_reused)
            sequence.admitted = Admitted(reused, self._clock() - sequence.arrived, from_disk, miss)
            self._trail.note(sequence, range(n_reused), reused)
            if from_disk:
                self.changes.note(sequence, range(n_reused))
            self._queue.charge(sequence.priority, sequence.tenant, prompt=sequence.n_prompt - reused)
            self._totals["queried_tokens"] += sequence.n_prompt
            self._totals["hit_tokens"] += reused
            self._totals["disk_tokens"] += from_disk

    def _break(self, sequence: Sequence, result: SliceOutput) -> Update:
        """End a sequence that has a failure or a fault."""
        if result.fault == BROKEN_NUMBERS:
            sequence.withdraw()
        self._forget(sequence)
        if result.fault == BROKEN_NUMBERS:
            self._media.withdraw(sequence.media.spans)
        return Update(sequence.id, finish="error", failure=result.failure, fault=result.fault)

    def _observe(self, sequence: Sequence, draft: Draft | None, result: SliceOutput) -> DraftCount | None:
        """Count the draft tokens that the step verified, and let all drafters learn from its result."""
        for drafter, _ in sequence.drafters:
            drafter.observe(result.tokens, len(draft.tokens) if draft and draft.drafter is drafter else 0)
        if draft is None:
            return None
        count = DraftCount(draft.drafter.name, len(draft.tokens), max(0, len(result.tokens) - 1))
        self._totals[f"{count.drafter}_drafted"] += count.drafted
        self._totals[f"{count.drafter}_accepted"] += count.accepted
        return count

    def _advance(self, sequence: Sequence, start: int, stop: int, result: SliceOutput) -> Update | None:
        update, full = sequence.take(start, stop, result)
        if full:
            self._trail.note(sequence, full, sequence.computed)
            self._stored.note(sequence, full)
            self.changes.note(sequence, full)
        if start < sequence.n_prompt <= stop:
            self._stored.note_end(sequence, sequence.n_prompt - 1)
        if update is not None and update.finish:
            log.debug("sequence %d ends: %s, %d tokens", sequence.id, update.finish, sequence.length)
            if self._copies_pages:
                sequence.keep()
            self._forget(sequence)
        return update
