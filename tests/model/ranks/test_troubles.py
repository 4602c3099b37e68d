"""Why a group ends: the likeliest cause, once."""

import queue

import pytest

from model.ranks.troubles import TroubleKind, Troubles


@pytest.mark.parametrize("first", ["raised", "gone"])
def test_a_rank_that_is_gone_explains_the_errors_of_others(first: str) -> None:
    """A sum fails on rank 0 when rank 1 dies, sometimes before rank 1's connection closes."""
    found: queue.SimpleQueue[str] = queue.SimpleQueue()
    troubles = Troubles(found.put)
    notes = [
        (TroubleKind.OWN, "rank 0 failed"),
        (TroubleKind.RAISED, "rank 2 failed"),
        (TroubleKind.GONE, "rank 1 is gone"),
    ]
    for kind, reason in notes if first == "raised" else reversed(notes):
        troubles.note(kind, reason)
    assert found.get(timeout=10) == troubles.reason == "rank 1 is gone"
    troubles.note(TroubleKind.GONE, "rank 2 is gone")
    assert found.empty()


def test_of_errors_the_first_counts() -> None:
    found: queue.SimpleQueue[str] = queue.SimpleQueue()
    troubles = Troubles(found.put)
    for rank in (2, 1):
        troubles.note(TroubleKind.RAISED, f"rank {rank} failed")
    assert found.get(timeout=10) == "rank 2 failed"
