"""The ways to compute a step. One executor serves a model: loading chooses it."""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from model.batch import Slice, StepBatch
from model.step.ahead import LastTokens
from model.step.sampler import Sampled

Views = Sequence[Sequence[Slice]]
"""`Slice.samples` of each slice of a step."""


class Executor(Protocol):
    """Computes the steps of a model."""

    def start(self, batch: StepBatch, views: Views, before: LastTokens) -> tuple[Tensor, Sequence[Sampled]]:
        """Start a step: hidden states [T, dim] after the last layer, and the sampled tokens after all `views`.

        `before` are the tokens that the step before sampled. A stage without a head samples nothing. The hidden states
        are empty if no slice needs them.
        """
        ...

    def idle(self) -> bool:
        """Do one piece of the work that can wait until no request runs; return whether there is more of it."""
        ...
