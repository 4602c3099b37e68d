"""A server that takes samples often, and its record."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from service.recording import recorder
from tests.service.live import Live, running
from tests.waiting import eventually


@contextmanager
def sampled(*, server: Callable[..., AbstractContextManager[Live]] = running, **options: Any) -> Iterator[Live]:
    """A server that takes twenty samples a second."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recorder, "PAUSE", 0.05)
        with server(**options) as live:
            yield live


def later(live: Live, n_samples: int = 6) -> Any:
    """The record once it has so many more samples."""
    n_before = len(live.state.recorder.record()["samples"])
    eventually(lambda: len(live.state.recorder.record()["samples"]) >= n_before + n_samples, "samples are taken")
    return live.state.recorder.record()
