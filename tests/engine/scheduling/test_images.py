"""Images in the scheduler: the work on them in each step, who holds them, what is evicted, and names of pages."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model.media import MediaSpan
from model.sampling_params import SamplingParams
from service.engine.messages import PrefixMiss, Submit
from service.engine.scheduling.media import MediaStore
from service.engine.scheduling.pages import page_name
from tests.engine.driving import Client, expected
from tests.engine.images import (
    BAD,
    IMG,
    AheadImages,
    ImageDrive,
    ImagePrompt,
    Picture,
    info_with_images,
    prompt_of,
    shape,
)
from tests.fakes import make_info

PARAMS = SamplingParams(max_tokens=3)
RED, BLUE = Picture(2, 3, b"\x01"), Picture(2, 3, b"\x02")
"""8 positions, 6 embeddings, 24 patches: 8 tokens of work."""


def drive(*, media_tokens: int = 64, pages: int = 64, max_step_tokens: int = 8, **more: Any) -> ImageDrive:
    info = info_with_images(media_tokens=media_tokens, pools=((None, pages),), max_model_len=more.pop("length", 128))
    return ImageDrive(info, max_step_tokens=max_step_tokens, **more)


def answered(engine: ImageDrive, prompts: dict[int, ImagePrompt]) -> None:
    """Run to the end; every answer is that of the prompt alone."""
    engine.run()
    for number, prompt in prompts.items():
        assert engine.answers[number] == expected(prompt.prompt, PARAMS)


def test_a_chunk_ends_before_an_image_until_that_is_encoded() -> None:
    """A budget of 5 tokens: 3 of text, then 2 of 8 of the image; 5; the last, and 4 positions of the image."""
    engine = drive(max_step_tokens=5)
    prompt = prompt_of([1, 2, 3], RED, [4, 5])
    engine.ask(1, prompt, PARAMS)
    assert shape(engine.step()) == ([(1, 0, 3)], [(1, 0, 6)])
    assert shape(engine.step()) == ([], [(1, 6, 21)])
    assert shape(engine.step()) == ([(1, 3, 7)], [(1, 21, 24)])
    assert shape(engine.step()) == ([(1, 7, 12)], [])
    assert shape(engine.step()) == ([(1, 12, 13)], [])
    answered(engine, {1: prompt})


def test_an_image_is_encoded_once_for_all_who_send_it() -> None:
    engine = drive(max_step_tokens=5)
    prompts = {number: prompt_of([number], RED, [4]) for number in (1, 2, 3)}
    for number in (1, 2):
        engine.ask(number, prompts[number], PARAMS)
    answered(engine, {})
    engine.ask(3, prompts[3], PARAMS)
    answered(engine, prompts)
    assert engine.runner.n_patches == 24


def test_each_owner_has_an_image_encoded() -> None:
    engine = drive(max_step_tokens=5)
    prompts = {number: prompt_of([number], RED, [4]) for number in (1, 2, 3)}
    for number, owner in zip(prompts, ("a", "b", "a"), strict=True):
        engine.ask(number, prompts[number], PARAMS, cache_owner=owner)
        answered(engine, {number: prompts[number]})
    assert engine.runner.n_patches == 2 * 24


def test_an_image_in_cached_pages_is_not_encoded_again() -> None:
    """Though its embeddings are evicted: the store has place for one image."""
    engine = drive(media_tokens=6, max_step_tokens=64)
    first, other = prompt_of([1], RED, [2, 3, 4]), prompt_of([1], BLUE, [2, 3, 4])
    for number, prompt in enumerate((first, other, first)):
        engine.ask(number, prompt, PARAMS)
        answered(engine, {number: prompt})
    assert [engine.admitted(number).cached for number in range(3)] == [0, 0, 8]
    assert engine.runner.n_patches == 3 * 24  # the last page of the third begins in the image
    longer = prompt_of([1], RED, [2, 3, 4, *engine.answers[0], 7])
    engine.ask(3, longer, PARAMS)
    answered(engine, {3: longer})
    assert engine.admitted(3).cached == 12
    assert engine.runner.n_patches == 3 * 24


def test_equal_tokens_with_another_image_are_another_page() -> None:
    """A page that begins inside the image has a name of its own too, because names are chained."""
    engine = drive(max_step_tokens=64)
    text = [40 + n for n in range(6)]
    for number, (picture, cached) in enumerate(((RED, 0), (BLUE, 4), (RED, 16), (BLUE, 16))):
        prompt = prompt_of(text, picture, text)
        engine.ask(number, prompt, PARAMS)
        answered(engine, {number: prompt})
        assert engine.admitted(number).cached == cached
        if number == 1:
            assert engine.admitted(1).miss == PrefixMiss(6, "diverged")


def test_page_names_have_place_and_digest_of_each_image() -> None:
    lists: list[list[tuple[int, str]]] = [[], [(0, "a")], [(1, "a")], [(0, "b")], [(0, "a"), (2, "a")]]
    names = [page_name(b"", [IMG] * 4, images) for images in lists]
    assert len(set(names)) == len(names)
    assert page_name(b"", [IMG] * 4, ((1, "a"),)) == names[2]


def test_no_draft_has_tokens_of_an_image() -> None:
    """The answer repeats 5, 6; an image follows these in the prompt."""
    engine = drive(max_step_tokens=64, say=lambda tokens, choice: 11 - tokens[-1] if tokens[-1] in (5, 6) else 5)
    engine.ask(1, prompt_of([5, 6], RED, 7), SamplingParams(max_tokens=12, prompt_lookup_num_tokens=4))
    engine.run()
    assert engine.answers[1] == [5, 6] * 6
    drafts = [item.tokens[item.stop - item.n_draft : item.stop] for step in engine.runner.steps for item in step.slices]
    assert any(drafts)
    assert all(IMG not in draft for draft in drafts)


def test_an_image_that_others_use_all_the_time_gives_way_to_the_one_that_waits() -> None:
    """Each step of 20 tokens ends inside of RED, so that somebody always holds it. The large image has no place."""
    engine = drive(media_tokens=9, max_step_tokens=20)
    for number in range(8):
        prompt = prompt_of(Picture(3, 3, b"\x02") if number == 1 else RED, [4])
        engine.ask(number, prompt, SamplingParams(max_tokens=1), cache_salt=str(number))
    engine.run()
    assert [*engine.finished] == [*range(8)]


def test_an_unfinished_image_is_forgotten_with_its_last_holder() -> None:
    store = MediaStore(info_with_images())
    span, pixels = prompt_of(RED).media[0], memoryview(RED.pixels)
    first, second = store.hold(span, pixels), store.hold(span, pixels)
    assert first is second is not None
    assert store.advance(first, 3) == 3
    store.release(first)
    store.check()
    assert [(work.start, work.stop) for work in store.take().work] == [(0, 9)]
    store.advance(first, 1)
    store.advance(first, 1)  # twice in one step: after a preemption there is budget again
    assert [(work.start, work.stop) for work in store.take().work] == [(9, 15)]
    store.advance(first, 1)
    store.release(first)
    store.check()
    assert store.take() == ((), (1,), False)


def test_a_fault_of_an_image_ends_those_who_need_it() -> None:
    engine = drive(max_step_tokens=64)
    bad = Picture(2, 3, BAD)
    prompts = {1: prompt_of([1], bad), 2: prompt_of([2], RED), 3: prompt_of([3], bad, [4]), 4: prompt_of([1, 2], BLUE)}
    for number, prompt in prompts.items():
        engine.ask(number, prompt, PARAMS)
    answered(engine, {2: prompts[2], 4: prompts[4]})
    assert engine.finished == {1: "error", 2: "length", 3: "error", 4: "length"}
    assert [engine.updates[number][-1].fault for number in (1, 3)] == ["the image is bad"] * 2
    assert engine.runner.n_patches == 3 * 24


def test_a_failed_step_ends_those_who_need_its_images() -> None:
    engine = drive(max_step_tokens=6)
    first, second = prompt_of([1], RED), prompt_of([2], RED)
    engine.ask(1, first, PARAMS)
    engine.step()
    engine.scheduler.plan()
    assert [(update.id, update.finish) for update in engine.scheduler.fail_steps()] == [(1, "error")]
    engine.ask(2, second, PARAMS)
    answered(engine, {2: second})
    assert set(engine.runner.done) == {2}  # the first number is forgotten, its work was begun


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"media": (MediaSpan(1, 9, 9, "large"),)}, "64 embeddings, got 81"),
        ({"media": (MediaSpan(1, 2, 3, "a"), MediaSpan(8, 2, 3, "b"))}, "must follow one another in 99 tokens"),
        ({"media": (MediaSpan(92, 2, 3, "a"),)}, "must follow one another in 99 tokens"),
        ({"media": (MediaSpan(1, 0, 3, "a"),)}, "must follow one another in 99 tokens"),
        ({"inputs": bytes(71)}, "72 bytes of inputs, got 71"),
        ({"media": ()}, "0 bytes of inputs, got 72"),
    ],
)
def test_images_that_can_never_be_encoded_are_refused(change: dict[str, Any], message: str) -> None:
    request = Submit(1, [IMG] * 99, PARAMS, media=(MediaSpan(1, 2, 3, "a"),), inputs=bytes(72))
    with pytest.raises(ValueError, match=message):
        drive().scheduler.submit(replace(request, **change))


def test_a_model_of_text_refuses_images() -> None:
    engine = ImageDrive(make_info())
    with pytest.raises(ValueError, match="the model has no encoder"):
        engine.ask(1, prompt_of(RED), PARAMS)


def test_work_on_images_is_service_of_a_tenant() -> None:
    """With a prompt of 8 positions and 8 tokens of work, `a` pays twice what `b` pays for 8 tokens of text."""
    engine = drive(max_sequences=1, max_step_tokens=64)
    for number in range(3):
        picture = Picture(2, 3, bytes([number]))
        engine.ask(number, prompt_of(picture), SamplingParams(max_tokens=1), tenant="a")
        for other in (10, 20, 30):
            engine.submit(other + number, [number + other] * 8, SamplingParams(max_tokens=1), tenant="b")
    engine.run()
    assert list(engine.finished) == [0, 10, 20, 1, 30, 11, 2, 21, 31, 12, 22, 32]


def test_prompts_behind_an_image_are_not_stuck() -> None:
    """While an image takes the whole budget, those who wait for it stand still, and count as advanced."""
    engine = drive(max_step_tokens=4)
    engine.submit(1, [5], SamplingParams(max_tokens=20))
    engine.ask(2, prompt_of([1], RED), PARAMS)
    engine.step()
    engine.step()
    assert shape(engine.step())[0] == [(1, 2, 3)]
    assert sorted(engine.scheduler.advanced) == [1, 2] == sorted(engine.scheduler.due)


def test_steps_follow_one_with_images_but_nobody_reads_an_image_that_may_be_bad() -> None:
    runner = AheadImages(info_with_images(media_tokens=6))
    prompts = {number: prompt_of([number], RED if number % 2 else BLUE, [4] * number) for number in range(1, 6)}
    params = SamplingParams(max_tokens=12)
    runner.prompts |= prompts
    submits = [
        Submit(number, item.prompt, params, media=item.media, inputs=item.inputs) for number, item in prompts.items()
    ]
    script = [[], *([item] for item in submits)]
    client = Client(runner, [*script, *[[]] * 12])
    assert client.answers == {number: expected(item.prompt, params) for number, item in prompts.items()}
    assert runner.n_ahead > 0.9 * len(runner.steps)


@pytest.mark.parametrize("evicted", [False, True])
def test_nobody_continues_behind_an_image_before_its_step_is_read(evicted: bool) -> None:
    """Of the second request an end token alone is to be computed, but the image before it may be gone."""
    engine = drive(media_tokens=6, max_step_tokens=64)
    for number, picture in enumerate((RED, BLUE) if evicted else (RED,)):
        engine.ask(number, prompt_of([1], picture), PARAMS)
        engine.run()
    engine.ask(2, prompt_of([1], RED), PARAMS)
    batch = engine.scheduler.plan()
    assert [(item.start, item.stop) for item in batch.slices] == [(8, 9)]
    assert bool(batch.media) == evicted
    assert engine.scheduler.assume()
    assert bool(engine.scheduler.plan()) is not evicted


@dataclass
class Request:
    parts: list[int | Picture]
    params: SamplingParams
    arrival: int
    aborted_at: int | None
    n: int


pictures = st.builds(Picture, st.integers(1, 3), st.integers(1, 3), st.sampled_from([b"\x01", b"\x02", BAD]))
requests = st.builds(
    Request,
    parts=st.lists(st.integers(1, 2) | pictures, min_size=1, max_size=4),
    params=st.builds(
        SamplingParams,
        max_tokens=st.integers(0, 8),
        prompt_logprobs=st.sampled_from([None, None, 0]),
        prompt_lookup_num_tokens=st.sampled_from([0, 4]),
    ),
    arrival=st.integers(0, 12),
    aborted_at=st.none() | st.integers(0, 40),
    n=st.sampled_from([1, 1, 2]),
)


@st.composite
def loads(draw: st.DrawFn) -> tuple[ImageDrive, list[Request]]:
    """An engine with hardly enough pages and place for images."""
    pipeline, ahead = draw(st.sampled_from([(1, False), (1, True), (2, False), (4, False)]))
    page_size, max_step_tokens, longest = draw(st.sampled_from([1, 3, 8])), draw(st.integers(3, 20)), 56
    n_pages = -(-longest // page_size) + draw(st.integers(0, 8))
    pools: list[tuple[int | None, int]] = [(None, n_pages)]
    if window := draw(st.sampled_from([0, 2, 9])):
        pools.append((window, n_pages))
    info = info_with_images(
        media_tokens=draw(st.integers(9, 30)), page_size=page_size, pools=pools, max_model_len=longest
    )
    info = replace(info, pipeline=pipeline, runs_ahead=ahead, max_sequences=3, copies_pages=draw(st.booleans()))
    order = draw(st.none() | st.randoms()) if info.pipeline > 1 or ahead else None
    lack = draw(st.none() | st.randoms()) if info.pipeline == 1 else None
    engine = ImageDrive(info, max_sequences=3, max_step_tokens=max_step_tokens, order=order, lack=lack)
    return engine, draw(st.lists(requests, min_size=1, max_size=8))


def serve(engine: ImageDrive, load: list[Request], limit: int = 4000) -> None:
    """Submit and abort each request at its time; step until nothing is left. No two steps in a row are empty."""
    idle = 0
    for now in range(limit):
        for index, request in enumerate(load):
            if now == request.arrival:
                prompt = prompt_of(*request.parts)
                engine.runner.prompts |= {2 * index + choice: prompt for choice in range(request.n)}
                engine.ask(2 * index, prompt, request.params, n=request.n)
            if now == request.aborted_at:
                engine.scheduler.abort(2 * index)
        if engine.scheduler.has_work or engine.flights:
            idle = 0 if engine.step() else idle + 1
            assert idle < 2
        elif now > 40:
            engine.check_idle()
            return
    raise AssertionError("the engine still has work at the end")


@settings(max_examples=75, deadline=None)
@given(loads())
def test_random_loads_with_images_keep_the_laws(load: tuple[ImageDrive, list[Request]]) -> None:
    play(*load)


def play(engine: ImageDrive, requests: list[Request]) -> None:
    """Every answer is right or that of a bad image, whoever comes, is preempted or leaves. `ImageRunner` checks all."""
    serve(engine, requests)
    for index, request in enumerate(requests):
        prompt = prompt_of(*request.parts)
        bad = any(isinstance(part, Picture) and part.color == BAD for part in request.parts)
        for choice in range(request.n):
            number = 2 * index + choice
            answer = expected(prompt.prompt, request.params, choice)
            if request.aborted_at is not None and not choice:
                assert engine.answers[number] == answer[: len(engine.answers[number])]
            else:
                assert engine.finished[number] == ("error" if bad else "length")
                assert engine.answers[number] == ([] if bad else answer)


def test_an_item_is_freed_once_its_positions_are_computed_and_comes_again_after_a_preemption() -> None:
    """Two sequences outgrow the pages: the younger one is preempted after its image, which the engine has no more."""
    prompts = {1: prompt_of([1, 2, 3], RED, [4]), 2: prompt_of([5], BLUE, [6])}
    params = SamplingParams(max_tokens=14)
    engine = drive(pages=10, max_step_tokens=64)
    for number, prompt in prompts.items():
        engine.ask(number, prompt, params)
    tables = {number: engine.scheduler._sequences[number].media for number in prompts}
    assert [len(b"".join(table._inputs)) for table in tables.values()] == [
        len(item.inputs) for item in prompts.values()
    ]
    while not all(table.passed for table in tables.values()):
        engine.step()
    assert not any(b"".join(table._inputs) for table in tables.values())
    engine.run()
    assert engine.n_again
    for number, prompt in prompts.items():
        assert engine.answers[number] == expected(prompt.prompt, params)
