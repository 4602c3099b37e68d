"""Random loads of text for the scheduler."""

from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st

from model.sampling_params import SamplingParams
from tests.engine.driving import Drive, expected
from tests.fakes import END, FAULTY, make_info, next_token, parrot


@dataclass
class Request:
    prompt: list[int]
    params: SamplingParams
    arrival: int
    priority: int
    cache_salt: str
    aborted_at: int | None

    @property
    def faulty(self) -> bool:
        return FAULTY in self.prompt


BEGINNING = [1, 1, 2, 3] * 6
windows = st.sampled_from([None, 1, 2, 3, 5, 9])
request_fields = {
    "prompt": st.lists(st.integers(1, 3), min_size=1, max_size=30)
    | st.builds(lambda n, end: [*BEGINNING[:n], end], st.integers(1, 24), st.sampled_from([1, 2, 3, FAULTY])),
    "params": st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 1.0]),
        max_tokens=st.integers(0, 12),
        stop_token_ids=st.sampled_from([(), (END,)]),
        prompt_logprobs=st.sampled_from([None, 0]),
        prompt_lookup_num_tokens=st.sampled_from([None, 0, 1, 5]),
    ),
    "arrival": st.integers(0, 6),
    "priority": st.integers(0, 2),
    "cache_salt": st.sampled_from(["", "a"]),
    "aborted_at": st.none() | st.integers(7, 30),
}


@st.composite
def loads(draw: st.DrawFn) -> tuple[Drive, list[Request]]:
    """An engine with hardly enough pages, and requests that share beginnings.

    It has one step in flight, one more that is planned ahead, or a pipeline of them.
    """
    pipeline, ahead = draw(st.sampled_from([(1, False), (1, True), (2, False), (3, False), (4, False)]))
    page_size = draw(st.sampled_from([1, 3, 4, 8, 16]))
    max_step_tokens = draw(st.integers(3, 20))
    spare = draw(st.integers(0, 12))
    longest = 42
    full = -(-longest // page_size)
    pools = []
    for window in draw(st.lists(windows, min_size=1, max_size=3, unique=True)):
        n_pages = full if window is None else min(full, -(-(window - 1 + max_step_tokens) // page_size) + 1)
        pools.append((window, n_pages + spare))
    info = make_info(page_size=page_size, pools=pools, max_model_len=longest)
    max_sequences = draw(st.integers(1, max_step_tokens))
    info = replace(info, pipeline=pipeline, runs_ahead=ahead, max_sequences=max_sequences)
    info = replace(info, copies_pages=draw(st.booleans()), prompt_lookup_num_tokens=draw(st.sampled_from([0, 3])))
    say = draw(st.sampled_from([next_token, parrot]))
    order = draw(st.none() | st.randoms()) if info.pipeline > 1 or ahead else None
    lack = draw(st.none() | st.randoms()) if info.pipeline == 1 else None
    drive = Drive(info, max_sequences=max_sequences, max_step_tokens=max_step_tokens, say=say, order=order, lack=lack)
    return drive, draw(st.lists(st.builds(Request, **request_fields), min_size=1, max_size=10))


def play(drive: Drive, requests: list[Request]) -> None:
    """Serve requests that arrive and abort, with too few pages. Every answer is right, and at the end no page is held.

    Nothing that the scheduler does after a plan changes the slices of the plan (`Drive.check_idle`).
    """
    _serve(drive, requests)
    for index, request in enumerate(requests):
        answer = expected(request.prompt, request.params, say=drive.say)
        scored = [item.token for update in drive.updates[index] for item in update.prompt_logprobs]
        wanted = [] if request.params.prompt_logprobs is None else request.prompt[1:]
        if request.faulty:
            assert request.aborted_at is not None or drive.finished[index] == "error"
        elif request.aborted_at is None:
            assert (drive.answers[index], scored) == (answer, wanted)
        else:
            assert drive.answers[index] == answer[: len(drive.answers[index])]
            assert scored == wanted[: len(scored)]


def _serve(drive: Drive, requests: list[Request], limit: int = 4000) -> None:
    """Submit and abort each request at its time; step until nothing is left."""
    for now in range(limit):
        for index, request in enumerate(requests):
            if now == request.arrival:
                more: dict[str, Any] = {"priority": request.priority, "cache_salt": request.cache_salt}
                drive.submit(index, request.prompt, request.params, **more)
            if now == request.aborted_at:
                drive.scheduler.abort(index)
        if drive.scheduler.has_work or drive.flights:
            assert drive.step().slices
        elif now > 60:
            drive.check_idle()
            return
    raise AssertionError("the engine still has work at the end")
