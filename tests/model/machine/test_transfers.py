"""Copies through two buffers: no buffer is overwritten before the device has read it."""

from typing import Any

import pytest
import torch

from model.machine.transfers import StagingBuffers, uploader

CPU = torch.device("cpu")


class Event:
    """The event of a fake device that copies late: a copy is done when the host waits for it, not before."""

    def __init__(self) -> None:
        self.copies: list[Any] = []

    def record(self) -> None:
        pass

    def synchronize(self) -> None:
        for copy in self.copies:
            copy()
        self.copies.clear()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("shape", [(1,), (7, 3), (64, 5), (33, 31)], ids=str)
def test_every_byte_arrives(shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's copies happen as late as they may."""
    events: list[Event] = []

    def event() -> Event:
        events.append(Event())
        return events[-1]

    copy_ = torch.Tensor.copy_

    def copy(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if not non_blocking:
            return copy_(target, source)
        stage._read[0].copies.append(lambda: copy_(target, source))
        return target

    stage = StagingBuffers(CPU, 64, pin=False, event=event)
    monkeypatch.setattr(torch.Tensor, "copy_", copy)
    tensors = [torch.randn(shape).to(dtype) for _ in range(3)]
    found = [stage.upload(tensor) for tensor in tensors]
    for made in events:
        made.synchronize()
    for mine, theirs in zip(found, tensors, strict=True):
        assert mine.data_ptr() != theirs.data_ptr()
        assert torch.equal(mine, theirs)


def test_a_cpu_uses_tensors_where_they_are() -> None:
    tensor = torch.zeros(3)
    assert uploader(CPU)(tensor) is tensor
