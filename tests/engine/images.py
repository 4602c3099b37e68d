"""Prompts with images, and a runner that checks every piece of work on them. The images are arithmetic too."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from model.batch import RunnerInfo, Slice, SliceOutput, StepBatch, StepOutput
from model.media import ImageFormat, MediaSpan, MediaWork, PlacedMedia
from model.sampling_params import SamplingParams
from tests.engine.driving import Drive
from tests.fakes import AheadRunner, FakeRunner, PipelineRunner, Say, make_info, next_token

IMG, BREAK, END_OF_IMAGE = 10, 12, 13
FORMAT = ImageFormat(patch_size=1, merge=2, longest_side=64, patches_per_token=3)
"""4 patches of 3 bytes for each embedding."""
BAD = b"\x63"
"""An image of these bytes cannot be encoded."""
FAULT = SliceOutput(fault="its image could not be encoded")


def info_with_images(*, media_tokens: int = 64, image_format: ImageFormat = FORMAT, **more: Any) -> RunnerInfo:
    return replace(make_info(**more), images=image_format, media_tokens=media_tokens)


@dataclass(frozen=True)
class Picture:
    """An image of one color."""

    rows: int
    columns: int
    color: bytes

    @property
    def digest(self) -> str:
        return f"{self.rows}x{self.columns} {self.color.hex()}"

    @property
    def tokens(self) -> list[int]:
        row = [IMG] * self.columns
        return [*[*row, BREAK] * (self.rows - 1), *row, END_OF_IMAGE]

    @property
    def pixels(self) -> bytes:
        return self.color * (self.rows * self.columns * FORMAT.token_side**2 * 3)


class ImagePrompt(NamedTuple):
    """The fields of a Submit."""

    prompt: list[int]
    media: tuple[MediaSpan, ...]
    inputs: bytes


def prompt_of(*parts: int | list[int] | Picture) -> ImagePrompt:
    """A prompt of tokens and images, in this order."""
    tokens: list[int] = []
    spans: list[MediaSpan] = []
    pixels = b""
    for part in parts:
        if isinstance(part, Picture):
            spans.append(MediaSpan(len(tokens), part.rows, part.columns, part.digest))
            tokens += part.tokens
            pixels += part.pixels
        else:
            tokens += [part] if isinstance(part, int) else part
    return ImagePrompt(tokens, tuple(spans), pixels)


def value(color: int, index: int) -> int:
    """The fake embedding of a position: no token has it."""
    return 1000 + 100 * color + index


class ImageRunner(FakeRunner):
    """A runner that encodes images, and fails if any part is missing, repeated, forgotten or too much."""

    def __init__(self, info: RunnerInfo, step_seconds: float = 0.0, say: Say = next_token) -> None:
        super().__init__(info, step_seconds, say)
        self.prompts: dict[int, ImagePrompt] = {}
        self.done: dict[int, MediaWork] = {}  # the latest work on each image that is not forgotten
        self.n_patches = 0  # of all work
        self._numbers: set[int] = set()

    def step(self, batch: StepBatch) -> StepOutput:
        for number in batch.forgotten:
            self.done.pop(number, None)
        faults = {work.number: "the image is bad" for work in batch.media if self._encode(work)}
        sound = [item for item in batch.slices if not any(placed.number in faults for placed in item.media)]
        outputs = iter(super().step(replace(batch, slices=tuple(sound))).slices)
        self.steps[-1] = batch
        return StepOutput(tuple(next(outputs) if item in sound else FAULT for item in batch.slices), faults)

    def _encode(self, work: MediaWork) -> bool:
        """Do a part of an image; returns whether it is a bad one."""
        assert self.info.images is not None
        before = self.done.get(work.number)
        assert (before.stop if before else 0) == work.start < work.stop <= work.n_patches
        assert before or work.number not in self._numbers, "a number is used again"
        assert work.n_patches == work.rows * work.columns * self.info.images.merge**2
        assert len(work.inputs) == work.n_patches * self.info.images.patch_size**2 * 3
        self._numbers.add(work.number)
        self.done[work.number] = work
        self.n_patches += work.stop - work.start
        assert sum(item.rows * item.columns for item in self.done.values()) <= self.info.media_tokens
        assert sum(item.stop < item.n_patches for item in self.done.values()) <= 1
        return bytes(work.inputs[:1]) == BAD

    def _embedded(self, item: Slice) -> list[int]:
        return [self._embedded_at(item, position) for position in range(item.start, item.stop)]

    def _embedded_at(self, item: Slice, position: int) -> int:
        for placed in item.media:
            if placed.span.start <= position < placed.span.stop:
                work = self.done[placed.number]
                assert work.stop == work.n_patches, "an image is read before it is encoded"
                assert bytes(work.inputs[:1]) != BAD, "an image is read that could not be encoded"
                return _at(placed, work.inputs[0], position, item.tokens[position])
        return item.tokens[position]

    def _wanted(self, item: Slice, start: int, stop: int) -> list[int]:
        return [self._wanted_at(item, position) for position in range(start, stop)]

    def _wanted_at(self, item: Slice, position: int) -> int:
        prompt = self.prompts.get(item.sequence_id)
        first = 0
        for span in prompt.media if prompt else ():
            if span.start <= position < span.stop:
                assert prompt is not None
                return _at(PlacedMedia(0, span), prompt.inputs[first], position, item.tokens[position])
            first += span.n_embeddings * FORMAT.token_side**2 * 3
        return item.tokens[position]


class PipelineImages(PipelineRunner, ImageRunner):
    pass


class AheadImages(AheadRunner, ImageRunner):
    pass


def _at(placed: PlacedMedia, color: int, position: int, token: int) -> int:
    row, column = divmod(position - placed.span.start, placed.span.columns + 1)
    return token if column == placed.span.columns else value(color, row * placed.span.columns + column)


class ImageDrive(Drive):
    """A scheduler with the runner above."""

    runner: ImageRunner

    def new_runner(self, info: RunnerInfo, say: Say) -> ImageRunner:
        if info.runs_ahead:
            return AheadImages(info, say=say)
        return (PipelineImages if info.pipeline > 1 else ImageRunner)(info, say=say)

    def ask(self, sequence_id: int, prompt: ImagePrompt, params: SamplingParams, **more: Any) -> None:
        self.runner.prompts[sequence_id] = prompt
        self.submit(sequence_id, prompt.prompt, params, media=prompt.media, inputs=prompt.inputs, **more)

    def step(self) -> StepBatch:
        batch = super().step()
        self.scheduler._media.check()
        return batch


def shape(batch: StepBatch) -> tuple[Sequence[tuple[int, int, int]], Sequence[tuple[int, int, int]]]:
    """The slices (sequence, start, stop) and the work on images (number, start, stop) of a step."""
    slices = [(item.sequence_id, item.start, item.stop) for item in batch.slices]
    return slices, [(work.number, work.start, work.stop) for work in batch.media]
