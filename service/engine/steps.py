"""Records of the steps: what the latest ones did, while somebody looks."""

import time
from collections import deque
from collections.abc import Callable

from model.batch import StepBatch, StepOutput
from service.engine.picture import MAX_STEPS, Picture, StepRows

WATCHED_SECONDS = 3.0
"""A step is recorded if it begins at most so long after a look. Who watches looks at least once a second."""


class StepRecorder:
    """The latest steps for the pictures of an engine. It records nothing while nobody looks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._n = 0
        self._looked: float | None = None
        self._latest: deque[StepRows] = deque(maxlen=MAX_STEPS)
        self._generated = self._prompt = 0

    def note(self, batch: StepBatch, output: StepOutput, rows: int, seconds: float) -> None:
        """Count a step that was read."""
        self._n += 1
        if self._looked is not None:
            if self._clock() - seconds > self._looked + WATCHED_SECONDS:
                self._forget(None)
            else:
                self._record(batch, output, rows, seconds)

    def take(self) -> Picture:
        """A picture of the steps since the last call, and nothing else."""
        now = self._clock()
        seconds = 0.0 if self._looked is None else now - self._looked
        taken = Picture(steps=(*self._latest,), seconds=seconds, generated=self._generated, prompt=self._prompt)
        self._forget(now)
        return taken

    def _forget(self, looked: float | None) -> None:
        self._looked = looked
        self._latest.clear()
        self._generated = self._prompt = 0

    def _record(self, batch: StepBatch, output: StepOutput, rows: int, seconds: float) -> None:
        draft = sum(item.n_draft for item in batch.slices)
        decode = sum(
            item.start >= item.n_prompt and item.stop - item.n_draft - item.start == 1 for item in batch.slices
        )
        prompt = rows - draft - decode
        self._latest.append(StepRows(self._n, decode, prompt, draft, len(batch.slices), round(seconds, 6)))
        self._generated += sum(len(item.tokens) for item in output.slices)
        self._prompt += prompt
