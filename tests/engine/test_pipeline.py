"""Several steps in flight in the stages of a pipeline: who is in which, and the same answers as with one."""

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from model.batch import RunnerInfo
from tests.engine.driving import Drive
from tests.engine.loads import Request, loads, play
from tests.fakes import make_info


def stages(n: int, **more: Any) -> RunnerInfo:
    return replace(make_info(**more), pipeline=n)


@settings(max_examples=300, deadline=None)
@given(loads(st.integers(2, 4)))
def test_random_loads_keep_the_laws(load: tuple[Drive, list[Request]]) -> None:
    play(*load)
