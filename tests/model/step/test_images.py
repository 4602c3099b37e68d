"""Images in the runner: rows of a step, faults, memory that runs out, and graphs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from model.batch import PageTable, Slice, StepBatch, StepTooLarge
from model.loading import create
from model.media import MediaSpan, MediaWork, PlacedMedia
from model.sampling_params import SamplingParams
from model.step import media
from model.step.executors.graphs import only_samples
from model.step.runner import ModelRunner
from tests.model import pixtral
from tests.model.pixtral import IMG, IMG_BREAK, IMG_END

TOKENS = [1, 3, IMG, IMG, IMG_BREAK, IMG, IMG, IMG_END, 50, 4]
SPAN = MediaSpan(2, 2, 2, "d")
N_PATCHES, N_BYTES = 16, 4 * 28 * 28 * 3
PARAMS = SamplingParams(temperature=0.0, max_tokens=4, logprobs=0)


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> ModelRunner:
    model: Path = pixtral.save_native("mistral3", tmp_path_factory.mktemp("images"))
    options = {"device": "cpu", "dtype": "float32", "max_model_len": 64, "cache_memory": 2**20}
    return create(lambda stage, done: None, model=str(model), **options)


def work(number: int, start: int = 0, stop: int = N_PATCHES, color: int = 7) -> MediaWork:
    return MediaWork(number, 2, 2, bytes([color]) * N_BYTES, start, stop, N_PATCHES)


def item(sequence_id: int, *numbers: int, start: int = 0, stop: int = len(TOKENS)) -> Slice:
    placed = tuple(PlacedMedia(number, SPAN) for number in numbers)
    return Slice(sequence_id, TOKENS, len(TOKENS), start, stop, (PageTable(0, (sequence_id,)),), PARAMS, media=placed)


def ran(runner: ModelRunner, slices: Sequence[Slice], *works: MediaWork) -> list[Any]:
    output = runner.step(StepBatch(tuple(slices), works))
    assert not output.media_faults
    return [(result.tokens, result.logprobs) for result in output.slices]


def test_rows_and_embeddings_of_a_step_by_hand() -> None:
    """The worked example of `_parts`, behind a slice of 5 tokens; and an end token alone."""
    placed = (PlacedMedia(4, MediaSpan(10, 2, 3, "d")),)
    tokens, tables = [0] * 20, (PageTable(0, (0,)),)
    first = Slice(1, tokens, 20, 0, 5, tables, PARAMS)
    second = Slice(2, tokens, 20, 12, 17, tables, PARAMS, media=placed)
    third = Slice(3, tokens, 20, 17, 19, tables, PARAMS, media=placed)
    found = [(number, [*rows], [*entries]) for number, rows, entries in media._parts(StepBatch((first, second, third)))]
    assert found == [(4, [5, 7, 8, 9], [2, 3, 4, 5]), (4, [], [])]


def test_work_in_parts_gives_what_the_whole_gives(runner: ModelRunner) -> None:
    whole = ran(runner, [item(0, 1)], work(1))
    ran(runner, [], work(2, 0, 5))
    ran(runner, [], work(2, 5, 15))
    assert ran(runner, [item(0, 2)], work(2, 15, 16)) == whole
    assert ran(runner, [item(0, 3)], work(3, color=200)) != whole
    parts = [item(0, 2, stop=4), item(0, 2, start=4, stop=5), item(0, 2, start=5)]
    (*_, (tokens, (scored,))) = [ran(runner, [part])[0] for part in parts]
    assert tokens == whole[0][0]
    assert scored.logprob == pytest.approx(whole[0][1][0].logprob, abs=1e-5)


def test_an_image_with_a_fault_ends_those_who_read_it(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = ran(runner, [item(1, 11), item(2)], work(11))
    begin = runner._media._encoder.begin  # type: ignore[union-attr]

    def fail(inputs: memoryview, rows: int, columns: int) -> Any:
        if inputs[0] == 9:
            raise RuntimeError("bad")
        return begin(inputs, rows, columns)

    monkeypatch.setattr(runner._media._encoder, "begin", fail)
    batch = StepBatch((item(0, 12), item(1, 13), item(2)), (work(12, color=9), work(13)))
    output = runner.step(batch)
    fault = f"{media.FAULT} (RuntimeError)"
    assert output.media_faults == {12: fault}
    assert output.slices[0].fault == fault
    assert [(result.tokens, result.logprobs) for result in output.slices[1:]] == sound
    assert runner.step(StepBatch((), (work(14, color=9),))).media_faults == {14: fault}


def test_an_image_for_which_memory_runs_out_is_tried_once_more(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = ran(runner, [item(0, 21)], work(21))
    advance, failures = runner._media._encoder.advance, [1, 1]  # type: ignore[union-attr]

    def fail(*args: Any) -> None:
        if failures:
            failures.pop()
            raise torch.OutOfMemoryError("no memory")
        advance(*args)

    monkeypatch.setattr(runner._media._encoder, "advance", fail)
    assert 22 in runner.step(StepBatch((), (work(22),))).media_faults
    failures.append(1)
    assert ran(runner, [item(0, 23)], work(23)) == plain


def test_slices_that_are_computed_apart_encode_once(runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second slice reads an image that nobody has encoded: it ends alone, whatever its place."""
    plain = ran(runner, [item(0, 31)], work(31))
    calls, advance = [], runner._media._advance

    def counted(part: MediaWork) -> None:
        calls.append(part.number)
        advance(part)

    monkeypatch.setattr(runner._media, "_advance", counted)
    output = runner.step(StepBatch((item(0, 32), item(1, 99), item(2)), (work(32),)))
    assert [(result.tokens, result.logprobs) for result in output.slices[:1]] == plain
    assert [result.fault is None for result in output.slices] == [True, False, True]
    assert calls == [32]


def test_a_step_that_does_not_fit_has_done_its_images_and_says_which_failed(
    runner: ModelRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler plans the tokens again, but sends no image a second time."""
    sound = ran(runner, [item(1, 71), item(2)], work(71))
    begin = runner._media._encoder.begin  # type: ignore[union-attr]

    def fail(*args: Any) -> None:
        raise torch.OutOfMemoryError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(runner._media._encoder, "begin", lambda *args: fail() if args[0][0] == 9 else begin(*args))
        patch.setattr(runner, "info", replace(runner.info, max_sequences=2))
        patch.setattr(runner.executor, "start", fail)
        with pytest.raises(StepTooLarge) as raised:
            runner.launch(StepBatch((item(0, 72), item(1, 73), item(2)), (work(72, color=9), work(73))))
    assert [*raised.value.media_faults] == [72]
    assert ran(runner, [item(1, 73), item(2)]) == sound


def test_what_is_forgotten_is_released(runner: ModelRunner) -> None:
    store = runner._media
    runner.step(StepBatch((), (work(41), work(42, 0, 3))))
    assert 41 in store._embeddings
    assert 42 in store._encodings
    runner.step(StepBatch((), (), (41, 42, 43)))
    assert not {41, 42} & (store._embeddings.keys() | store._encodings.keys())


def test_no_graph_computes_an_image_or_an_adapter() -> None:
    text = item(0, start=9)
    for one, is_text in ((text, True), (item(0, 1, start=9), False), (text._replace(adapter=1), False)):
        assert only_samples(StepBatch((one,))) == is_text


def test_warming_up_leaves_no_image(runner: ModelRunner) -> None:
    assert not {0} & (runner._media._embeddings.keys() | runner._media._encodings.keys())
