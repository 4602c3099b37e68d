"""The encoded images and audio of the engine: what the runner keeps, who holds it, and the work in each step.

An encoded media item is *held* (sequences have positions of it to compute) or *cached* (no sequence holds it; the least
recently used item is evicted first). All of them together have at most `RunnerInfo.media_tokens` embeddings. At most
one of them is unfinished, so that the runner needs scratch memory for one. Numbers and sizes only, no tensors.

Why no sequence waits for ever: it waits if its item finds no place, or while another item is unfinished. In both
cases another running sequence holds an item. If that item is unfinished, its holder plans work on it with the budget
of each step. If it is finished, its holder can compute the positions of the item, and then releases it: it holds
nothing beyond an item that it waits for. When no item is held, all can be evicted, and each one fits alone. Until the
sequence that waits has its place, no other sequence gets a new one.
"""

from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from itertools import accumulate, count, pairwise
from typing import NamedTuple

from model.batch import RunnerInfo
from model.media import AudioFormat, ImageFormat, MediaSpan, MediaWork, PlacedMedia
from service.engine.messages import Submit

NO_FORMAT: ImageFormat | AudioFormat = ImageFormat(patch_size=0, merge=0, longest_side=0)
"""That of a model of text."""


class EncodedMedia:
    """An item whose embeddings the runner has, or will have. The work on the first `done` patches is planned.

    While the step with the last of it is in flight, nobody knows whether the item can be encoded.
    """

    __slots__ = ("done", "holders", "in_flight", "inputs", "number", "span")

    def __init__(self, number: int, span: MediaSpan, inputs: bytes) -> None:
        self.number = number
        self.span = span  # the place of the item in the sequence that held it first
        self.inputs: bytes | None = inputs  # None once it is finished
        self.done = 0
        self.in_flight = False
        self.holders = 0

    @property
    def finished(self) -> bool:
        return self.inputs is None


class MediaPlan(NamedTuple):
    """The part of a step that concerns media; `waits` says whether a sequence found no place for its item."""

    work: tuple[MediaWork, ...]
    forgotten: tuple[int, ...]
    waits: bool


class MediaStore:
    """All encoded media of one engine, by their digests."""

    def __init__(self, info: RunnerInfo) -> None:
        self.limit = info.media_tokens
        self._format = info.media or NO_FORMAT
        self._numbers = count(1)
        self._media: OrderedDict[str, EncodedMedia] = OrderedDict()  # the least recently used first
        self._used = 0  # embeddings of all media
        self._unfinished: EncodedMedia | None = None
        self._work: dict[int, MediaWork] = {}  # of the step that is being planned, by number
        self._forgotten: list[int] = []
        self._waits = False

    @property
    def n_held(self) -> int:
        return sum(1 for item in self._media.values() if item.holders)

    def check_prompt(self, request: Submit) -> None:
        """Raise ValueError if an item of the request can never be encoded, or does not fit its prompt and inputs."""
        if request.media and self._format is NO_FORMAT:
            raise ValueError("the prompt has media, but the model has no encoder")
        end = 0
        for span in request.media:
            if span.start < end or min(span.rows, span.columns) < 1 or span.stop > len(request.prompt):
                raise ValueError(f"media must follow one another in {len(request.prompt)} tokens, got {span}")
            if span.n_embeddings > self.limit:
                raise ValueError(f"an item may have {self.limit} embeddings, got {span.n_embeddings}")
            end = span.stop
        n_bytes = sum(map(self.n_bytes, request.media))
        if len(request.inputs) != n_bytes:
            raise ValueError(f"the media have {n_bytes} bytes of inputs, got {len(request.inputs)}")

    def n_bytes(self, span: MediaSpan) -> int:
        return self._format.n_bytes(span.rows, span.columns)

    def cut(self, request: Submit) -> list[bytes]:
        """Return the inputs of each item apart: one that is not needed any more can be freed."""
        ends = [*accumulate(map(self.n_bytes, request.media), initial=0)]
        return [request.inputs[start:end] for start, end in pairwise(ends)]

    def hold(self, span: MediaSpan, inputs: bytes) -> EncodedMedia | None:
        """Hold the item of this digest once more; returns None if its sequence must wait."""
        self._waits = self._waits or not self._has_place(span)
        if self._waits:
            return None
        item = self._media.get(span.digest)
        if item is None:
            item = self._media[span.digest] = EncodedMedia(next(self._numbers), span, inputs)
            self._used += span.n_embeddings
            self._unfinished = item
        item.holders += 1
        return item

    def release(self, item: EncodedMedia) -> None:
        """Release one hold. After the last one a finished item is cached, an unfinished one forgotten."""
        if item.holders < 1:
            raise ValueError(f"item {item.number} is released but not held")
        item.holders -= 1
        if item.holders:
            return
        if item.finished:
            self._media.move_to_end(item.span.digest)
        else:
            self._drop(item)

    def withdraw(self, spans: Iterable[MediaSpan]) -> None:
        """Forget these media, but not those that are held."""
        for span in spans:
            if (item := self._media.get(span.digest)) is not None and not item.holders:
                self._drop(item)

    def fail(self, numbers: Container[int]) -> None:
        """Forget the media with these numbers, which nobody may hold: they are not what was planned."""
        for item in [item for item in self._media.values() if item.number in numbers]:
            assert not item.holders, f"item {item.number} is held"
            self._drop(item)

    def advance(self, item: EncodedMedia, budget: int) -> int:
        """Plan work on an unfinished item for at most `budget` tokens, at least 1; returns the tokens that it costs.

        Worked example: 4 patches cost as one token, 10 patches are left. A budget of 2 pays 8 patches and costs 2. The
        next step does the last 2 patches for 1.
        """
        assert item.inputs is not None, f"item {item.number} is finished"
        rows, columns, rate = item.span.rows, item.span.columns, self._format.patches_per_token
        n_patches = self._format.n_patches(rows, columns)
        n = min(n_patches - item.done, budget * rate)
        begun = self._work.get(item.number)
        start = item.done if begun is None else begun.start
        item.done += n
        self._work[item.number] = MediaWork(item.number, rows, columns, item.inputs, start, item.done, n_patches)
        if item.done == n_patches:
            item.inputs = self._unfinished = None
        return -(-n // rate)

    def take(self) -> MediaPlan:
        """Return what was planned since the last call. It is in flight from now on."""
        plan = MediaPlan(tuple(self._work.values()), tuple(self._forgotten), self._waits)
        for item in self._media.values():
            item.in_flight = item.in_flight or (item.finished and item.number in self._work)
        self._work, self._forgotten, self._waits = {}, [], False
        return plan

    def land(self, plan: MediaPlan) -> None:
        """Take note that the step of this plan was computed."""
        numbers = {work.number for work in plan.work if work.stop == work.n_patches}
        for item in self._media.values():
            item.in_flight = item.in_flight and item.number not in numbers

    def check(self) -> None:
        """Raise AssertionError unless the media fit, their numbers differ, and at most one, held, is unfinished."""
        media = self._media.values()
        used = sum(item.span.n_embeddings for item in media)
        assert used == self._used <= self.limit, f"{used} embeddings, {self._used} are counted, {self.limit} fit"
        assert len({item.number for item in media}) == len(media), "two media have one number"
        unfinished = [item for item in media if not item.finished]
        assert unfinished == [self._unfinished] * len(unfinished), "two media are unfinished"
        assert all(item.holders for item in unfinished), "an unfinished item is held by no sequence"

    def _has_place(self, span: MediaSpan) -> bool:
        """Return whether the item is there, or may be begun. Evicts media if it may."""
        if span.digest in self._media:
            return True
        cached = [item for item in self._media.values() if not item.holders]
        free = self.limit - self._used
        if self._unfinished or free + sum(item.span.n_embeddings for item in cached) < span.n_embeddings:
            return False
        for item in cached:
            if self.limit - self._used >= span.n_embeddings:
                break
            self._drop(item)
        return True

    def _drop(self, item: EncodedMedia) -> None:
        del self._media[item.span.digest]
        self._used -= item.span.n_embeddings
        self._work.pop(item.number, None)
        self._forgotten.append(item.number)
        if self._unfinished is item:
            self._unfinished = None


class MediaTable:
    """The media of one sequence: their places and inputs, and which of the encoded media it holds.

    The inputs of the first `passed` ones are gone: their positions are computed.
    """

    __slots__ = ("_held", "_inputs", "_store", "end", "passed", "spans")

    def __init__(self, store: MediaStore, request: Submit, inputs: Iterable[bytes]) -> None:
        self.spans = tuple(_owned(span, request.cache_owner) for span in request.media)
        self.end = self.spans[-1].stop if self.spans else 0  # no item is at this position or behind it
        self._store = store
        self._inputs = [*inputs]
        self.passed = 0
        self._held: dict[int, EncodedMedia] = {}  # by place in `spans`

    @property
    def held(self) -> Iterator[int]:
        """Return the numbers of the encoded media that the sequence holds."""
        return (item.number for item in self._held.values())

    @property
    def in_flight(self) -> bool:
        """Return whether the sequence must wait until a step in flight has encoded one of its media."""
        return any(item.in_flight for item in self._held.values())

    def plan(self, start: int, n_tokens: int, budget: int) -> tuple[int, int]:
        """Plan the work on the media that a chunk reaches, up to `n_tokens` tokens from position `start`.

        Returns how many tokens the chunk may then have, and how many of the step's `budget` the work costs. The chunk
        ends before an item that is not finished, or that a step in flight finishes: a later step must not read what
        may not be there.
        """
        if self.in_flight:
            return 0, 0
        left, stop = budget, start + n_tokens
        for index, span in enumerate(self.spans):
            if span.stop <= start or span.start >= stop:
                continue
            before = max(0, span.start - start)
            item = self._hold(index)
            if item is not None and not item.finished:
                left -= self._store.advance(item, left - before)
            if item is None or item.in_flight or not item.finished:
                return before, budget - left
            stop = min(stop, start + left)
        return stop - start, budget - left

    def placed(self, start: int, stop: int) -> tuple[PlacedMedia, ...]:
        """Return the media at positions `start..stop-1`."""
        held = ((self.spans[index], item) for index, item in sorted(self._held.items()))
        return tuple(PlacedMedia(item.number, span) for span, item in held if span.start < stop and span.stop > start)

    def roll(self, next_position: int) -> None:
        """Release the media before the next position to compute, and their inputs."""
        while self.passed < len(self.spans) and self.spans[self.passed].stop <= next_position:
            if (item := self._held.pop(self.passed, None)) is not None:
                self._store.release(item)
            self._inputs[self.passed] = b""
            self.passed += 1

    def clear(self) -> None:
        while self._held:
            self._store.release(self._held.popitem()[1])

    def _hold(self, index: int) -> EncodedMedia | None:
        item = self._held.get(index) or self._store.hold(self.spans[index], self._inputs[index])
        if item is not None:
            self._held[index] = item
        return item


def _owned(span: MediaSpan, owner: str) -> MediaSpan:
    """Give the item a digest that no other owner has: how soon it is encoded tells them nothing."""
    return replace(span, digest=f"{owner}/{span.digest}") if owner else span
