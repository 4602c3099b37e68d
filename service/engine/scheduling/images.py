"""The encoded images of the engine: which of them the runner keeps, who holds them, and the work on them in each step.

An encoded image is *held* (sequences have positions of it to compute) or *cached* (no sequence holds it; the least
recently used image is evicted first). All of them together have at most `RunnerInfo.image_tokens` embeddings. At most
one of them is unfinished, so that the runner needs scratch memory for one. Numbers and sizes only, no tensors.

Why no sequence waits for ever: it waits if its image finds no place, or while another image is unfinished. In both
cases another running sequence holds an image. If that image is unfinished, its holder plans work on it with the budget
of each step. If it is finished, its holder can compute the positions of the image, and then releases it: it holds
nothing beyond an image that it waits for. When no image is held, all can be evicted, and each one fits alone. Until the
sequence that waits has its place, no other sequence gets a new one.
"""

from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from itertools import count
from typing import NamedTuple

from model.batch import RunnerInfo
from model.image_spans import ImageFormat, ImageSpan, ImageWork, PlacedImage
from service.engine.messages import Submit

NO_FORMAT = ImageFormat(patch_size=0, merge=0, longest_side=0)
"""That of a model of text."""


class EncodedImage:
    """An image whose embeddings the runner has, or will have. The work on the first `done` patches is planned.

    While the step with the last of it is in flight, nobody knows whether the image can be encoded.
    """

    __slots__ = ("done", "holders", "in_flight", "number", "pixels", "span")

    def __init__(self, number: int, span: ImageSpan, pixels: memoryview) -> None:
        self.number = number
        self.span = span  # the place of the image in the sequence that held it first
        self.pixels: memoryview | None = pixels  # None once it is finished
        self.done = 0
        self.in_flight = False
        self.holders = 0

    @property
    def finished(self) -> bool:
        return self.pixels is None


class ImagePlan(NamedTuple):
    """The part of a step that concerns images; `waits` says whether a sequence found no place for its image."""

    work: tuple[ImageWork, ...]
    forgotten: tuple[int, ...]
    waits: bool


class ImageStore:
    """All encoded images of one engine, by their digests."""

    def __init__(self, info: RunnerInfo) -> None:
        self.limit = info.image_tokens
        self._format = info.images or NO_FORMAT
        self._numbers = count(1)
        self._images: OrderedDict[str, EncodedImage] = OrderedDict()  # the least recently used first
        self._used = 0  # embeddings of all images
        self._unfinished: EncodedImage | None = None
        self._work: dict[int, ImageWork] = {}  # of the step that is being planned, by number
        self._forgotten: list[int] = []
        self._waits = False

    @property
    def n_held(self) -> int:
        return sum(1 for image in self._images.values() if image.holders)

    def check_prompt(self, request: Submit) -> None:
        """Raise ValueError if an image of the request can never be encoded, or does not fit its prompt and pixels."""
        if request.images and self._format is NO_FORMAT:
            raise ValueError("the prompt has images, but the model has no image encoder")
        end = 0
        for span in request.images:
            if span.start < end or min(span.rows, span.columns) < 1 or span.stop > len(request.prompt):
                raise ValueError(f"images must follow one another in {len(request.prompt)} tokens, got {span}")
            if span.n_embeddings > self.limit:
                raise ValueError(f"an image may have {self.limit} embeddings, got {span.n_embeddings}")
            end = span.stop
        n_bytes = sum(map(self.n_bytes, request.images))
        if len(request.pixels) != n_bytes:
            raise ValueError(f"the images have {n_bytes} bytes of pixels, got {len(request.pixels)}")

    def n_bytes(self, span: ImageSpan) -> int:
        """Bytes of the pixels of an image."""
        return self._format.n_bytes(span.rows, span.columns)

    def hold(self, span: ImageSpan, pixels: memoryview) -> EncodedImage | None:
        """The image of this digest, held once more; None if its sequence must wait."""
        self._waits = self._waits or not self._has_place(span)
        if self._waits:
            return None
        image = self._images.get(span.digest)
        if image is None:
            image = self._images[span.digest] = EncodedImage(next(self._numbers), span, pixels)
            self._used += span.n_embeddings
            self._unfinished = image
        image.holders += 1
        return image

    def release(self, image: EncodedImage) -> None:
        """Release one hold. After the last one a finished image is cached, an unfinished one forgotten."""
        if image.holders < 1:
            raise ValueError(f"image {image.number} is released but not held")
        image.holders -= 1
        if image.holders:
            return
        if image.finished:
            self._images.move_to_end(image.span.digest)
        else:
            self._drop(image)

    def withdraw(self, spans: Iterable[ImageSpan]) -> None:
        """Forget these images, but not those that are held."""
        for span in spans:
            if (image := self._images.get(span.digest)) is not None and not image.holders:
                self._drop(image)

    def fail(self, numbers: Container[int]) -> None:
        """Forget the images with these numbers, which nobody may hold: they are not what was planned."""
        for image in [image for image in self._images.values() if image.number in numbers]:
            assert not image.holders, f"image {image.number} is held"
            self._drop(image)

    def advance(self, image: EncodedImage, budget: int) -> int:
        """Plan work on an unfinished image for at most `budget` tokens, at least 1; returns the tokens that it costs.

        Worked example: 4 patches cost as one token, 10 patches are left. A budget of 2 pays 8 patches and costs 2. The
        next step does the last 2 patches for 1.
        """
        assert image.pixels is not None, f"image {image.number} is finished"
        rows, columns, rate = image.span.rows, image.span.columns, self._format.patches_per_token
        n_patches = self._format.n_patches(rows, columns)
        n = min(n_patches - image.done, budget * rate)
        begun = self._work.get(image.number)
        start = image.done if begun is None else begun.start
        image.done += n
        self._work[image.number] = ImageWork(image.number, rows, columns, image.pixels, start, image.done, n_patches)
        if image.done == n_patches:
            image.pixels = self._unfinished = None
        return -(-n // rate)

    def take(self) -> ImagePlan:
        """What was planned since the last call: it is in flight from now on."""
        plan = ImagePlan(tuple(self._work.values()), tuple(self._forgotten), self._waits)
        for image in self._images.values():
            image.in_flight = image.in_flight or (image.finished and image.number in self._work)
        self._work, self._forgotten, self._waits = {}, [], False
        return plan

    def land(self, plan: ImagePlan) -> None:
        """Take note that the step of this plan was computed."""
        numbers = {work.image for work in plan.work if work.stop == work.n_patches}
        for image in self._images.values():
            image.in_flight = image.in_flight and image.number not in numbers

    def check(self) -> None:
        """Raise AssertionError unless the images fit, their numbers differ, and at most one, held, is unfinished."""
        images = self._images.values()
        used = sum(image.span.n_embeddings for image in images)
        assert used == self._used <= self.limit, f"{used} embeddings, {self._used} are counted, {self.limit} fit"
        assert len({image.number for image in images}) == len(images), "two images have one number"
        unfinished = [image for image in images if not image.finished]
        assert unfinished == [self._unfinished] * len(unfinished), "two images are unfinished"
        assert all(image.holders for image in unfinished), "an unfinished image is held by no sequence"

    def _has_place(self, span: ImageSpan) -> bool:
        """Whether the image is there, or may be begun. Evicts images if it may."""
        if span.digest in self._images:
            return True
        cached = [image for image in self._images.values() if not image.holders]
        free = self.limit - self._used
        if self._unfinished or free + sum(image.span.n_embeddings for image in cached) < span.n_embeddings:
            return False
        for image in cached:
            if self.limit - self._used >= span.n_embeddings:
                break
            self._drop(image)
        return True

    def _drop(self, image: EncodedImage) -> None:
        del self._images[image.span.digest]
        self._used -= image.span.n_embeddings
        self._work.pop(image.number, None)
        self._forgotten.append(image.number)
        if self._unfinished is image:
            self._unfinished = None


class ImageTable:
    """The images of one sequence: their places and pixels, and which of the encoded images it holds."""

    __slots__ = ("_held", "_pixels", "_store", "end", "spans")

    def __init__(self, store: ImageStore, request: Submit) -> None:
        self.spans = tuple(_owned(span, request.cache_owner) for span in request.images)
        self.end = self.spans[-1].stop if self.spans else 0  # no image is at this position or behind it
        self._store = store
        self._pixels = tuple(_cut(memoryview(request.pixels), map(store.n_bytes, self.spans)))
        self._held: dict[int, EncodedImage] = {}  # by place in `spans`

    @property
    def held(self) -> Iterator[int]:
        """The numbers of the encoded images that the sequence holds."""
        return (image.number for image in self._held.values())

    @property
    def in_flight(self) -> bool:
        """Whether the sequence must wait until a step in flight has encoded one of its images."""
        return any(image.in_flight for image in self._held.values())

    def plan(self, start: int, n_tokens: int, budget: int) -> tuple[int, int]:
        """Plan the work on the images that a chunk reaches, up to `n_tokens` tokens from position `start`.

        Returns how many tokens the chunk may then have, and how many of the step's `budget` the work costs. The chunk
        ends before an image that is not finished, or that a step in flight finishes: a later step must not read what
        may not be there.
        """
        if self.in_flight:
            return 0, 0
        left, stop = budget, start + n_tokens
        for index, span in enumerate(self.spans):
            if span.stop <= start or span.start >= stop:
                continue
            before = max(0, span.start - start)
            image = self._hold(index)
            if image is not None and not image.finished:
                left -= self._store.advance(image, left - before)
            if image is None or image.in_flight or not image.finished:
                return before, budget - left
            stop = min(stop, start + left)
        return stop - start, budget - left

    def placed(self, start: int, stop: int) -> tuple[PlacedImage, ...]:
        """The images at positions `start..stop-1`."""
        held = ((self.spans[index], image) for index, image in sorted(self._held.items()))
        return tuple(PlacedImage(image.number, span) for span, image in held if span.start < stop and span.stop > start)

    def roll(self, next_position: int) -> None:
        """Release the images before the next position to compute."""
        for index in [index for index in self._held if self.spans[index].stop <= next_position]:
            self._store.release(self._held.pop(index))

    def clear(self) -> None:
        """Release all images."""
        while self._held:
            self._store.release(self._held.popitem()[1])

    def _hold(self, index: int) -> EncodedImage | None:
        image = self._held.get(index) or self._store.hold(self.spans[index], self._pixels[index])
        if image is not None:
            self._held[index] = image
        return image


def _cut(data: memoryview, sizes: Iterator[int]) -> Iterator[memoryview]:
    start = 0
    for size in sizes:
        yield data[start : start + size]
        start += size


def _owned(span: ImageSpan, owner: str) -> ImageSpan:
    """The image under a name that other owners do not have: how soon it is encoded tells them nothing."""
    return replace(span, digest=f"{owner}/{span.digest}") if owner else span
