"""How long the oldest sequence has made no progress: the clock alone, and as the service sees it."""

import asyncio
import threading

import pytest

from model.batch import StepBatch, StepOutput
from model.sampling_params import SamplingParams
from service.engine.client import EngineClient
from service.engine.picture import StepRows
from service.engine.progress import WATCHED_SECONDS, StallClock, StepRecorder
from tests.engine.driving import Drive, expected
from tests.engine.hosting import PARAMS, Hosts, collect, process, thread, until, with_client
from tests.engine.images import ImageRunner, Picture, info_with_images, prompt_of
from tests.fakes import FakeRunner, WaitingRunner, make_info, parrot


def test_the_sequence_that_waits_longest_counts_whatever_the_others_do() -> None:
    clock = StallClock()
    assert clock.tick(5) == 0  # nothing is due
    clock.note([1, 2])
    assert clock.tick(3) == 3
    clock.note([1, 2, 3], done=[2])
    assert clock.tick(1) == 4
    clock.note([2, 3], done=[2])
    assert clock.tick(1) == 2  # 1 has ended; 3 began when 1 had waited 3 s
    clock.note([])
    assert clock.tick(60) == 0


def test_other_work_counts_until_its_number_changes() -> None:
    clock = StallClock()
    clock.tick(1, inbox=7, preparing=None)
    assert clock.tick(2, inbox=7, preparing=1) == 2
    assert clock.tick(2, inbox=8, preparing=1) == 2
    assert clock.tick(2, inbox=None, preparing=1) == 4
    assert clock.tick(2, inbox=8, preparing=None) == 0


def test_a_grammar_whose_process_starts_slowly_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes three times as long as a sequence may be without progress; others are served meanwhile."""
    starting = WaitingRunner(make_info(page_size=16, pools=((None, 512),), max_model_len=512))
    starting.may = threading.Event()  # type: ignore[misc]
    monkeypatch.setattr("tests.fakes.WAITING", starting)
    hosts, params = Hosts(lambda: thread("create_waiting")), SamplingParams(max_tokens=4, grammar="g")

    async def body(client: EngineClient) -> None:
        answer = asyncio.create_task(collect(client.submit([1, 2], params)))
        await asyncio.sleep(3.0)
        assert await collect(client.submit([1], PARAMS)) == expected([1], PARAMS)
        starting.may.set()
        assert await answer == expected([1, 2], params)
        assert len(hosts.made) == 1

    with_client(hosts, body, step_timeout=1.0)


class Following(FakeRunner):
    """A runner whose second step waits two seconds for the process of grammars."""

    def step(self, batch: StepBatch) -> StepOutput:
        self.waits_for_grammars = len(self.steps) == 1
        threading.Event().wait(2.0 * self.waits_for_grammars)
        self.waits_for_grammars = False
        return super().step(batch)


def test_a_step_that_waits_for_the_process_of_grammars_is_no_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    info = make_info(page_size=16, pools=((None, 512),), max_model_len=512)
    monkeypatch.setattr("tests.fakes.create_slow", lambda progress, **options: Following(info), raising=False)
    hosts = Hosts(lambda: thread("create_slow"))

    async def body(client: EngineClient) -> None:
        assert await collect(client.submit([1], PARAMS)) == expected([1], PARAMS)
        assert len(hosts.made) == 1

    with_client(hosts, body, step_timeout=1.0)


class Blocked(FakeRunner):
    """A runner that hangs where nothing runs: between two steps."""

    def __init__(self, may: threading.Event) -> None:
        super().__init__(make_info(page_size=16, pools=((None, 512),), max_model_len=512))
        self.may = may

    def idle(self) -> bool:
        if self.steps:
            self.may.wait(60)
        return False


class Slow(FakeRunner):
    """A runner that computes a step in half a second."""

    def step(self, batch: StepBatch) -> StepOutput:
        threading.Event().wait(0.5)
        return super().step(batch)


def test_messages_that_the_loop_leaves_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    may = threading.Event()
    monkeypatch.setattr("tests.fakes.create_blocked", lambda progress, **options: Blocked(may), raising=False)
    hosts = Hosts(lambda: thread("create_blocked"), thread)

    async def body(client: EngineClient) -> None:
        assert await collect(client.submit([1], PARAMS)) == expected([1], PARAMS)
        assert await collect(client.submit([2], PARAMS)) == expected([2], PARAMS)
        assert client.n_lost == 1
        may.set()

    with_client(hosts, body, step_timeout=1.0)


def test_a_queue_is_no_stall_while_others_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sequence runs at a time, each step takes half a second, and the last sequence waits for three."""
    info = make_info(page_size=16, pools=((None, 512),), max_model_len=512, limits=(1, 32))
    monkeypatch.setattr("tests.fakes.create_slow", lambda progress, **options: Slow(info), raising=False)
    params = SamplingParams(max_tokens=1)

    async def body(client: EngineClient) -> None:
        mailboxes = [client.submit([n + 1], params) for n in range(7)]
        assert await asyncio.gather(*map(collect, mailboxes)) == [expected([n + 1], params) for n in range(7)]
        await until(lambda: client.stats.running == 0)

    with_client(Hosts(lambda: thread("create_slow")), body, step_timeout=2.5)


class SlowPerToken(FakeRunner):
    """A runner that computes 50 tokens a second."""

    def step(self, batch: StepBatch) -> StepOutput:
        threading.Event().wait(batch.n_tokens / 50)
        return super().step(batch)


def test_a_slow_machine_serves_a_long_prompt_and_is_not_taken_for_hung(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt takes four times as long as a sequence may be without progress."""
    info = make_info(page_size=16, pools=((None, 512),), max_model_len=512, limits=(8, 512))
    monkeypatch.setattr("tests.fakes.create_slow", lambda progress, **options: SlowPerToken(info), raising=False)
    hosts, prompt, params = Hosts(lambda: thread("create_slow")), [7] * 400, SamplingParams(max_tokens=2)

    async def body(client: EngineClient) -> None:
        assert await collect(client.submit(prompt, params)) == expected(prompt, params)
        assert len(hosts.made) == 1

    with_client(hosts, body, step_timeout=2.0)


def test_encoding_an_image_is_measured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its 256 patches cost 86 tokens, and the first step is planned for one."""
    info = info_with_images(page_size=16, pools=((None, 512),), max_model_len=512, limits=(8, 512))
    runner, params = ImageRunner(info), SamplingParams(max_tokens=2)
    monkeypatch.setattr("tests.fakes.create_images", lambda progress, **options: runner, raising=False)
    prompt = prompt_of(Picture(8, 8, b"a"))

    async def body(client: EngineClient) -> None:
        runner.prompts[1] = prompt
        answer = await collect(client.submit(prompt.prompt, params, media=prompt.media, inputs=prompt.inputs))
        assert answer == expected(prompt.prompt, params)

    with_client(Hosts(lambda: thread("create_images")), body, step_timeout=4.0)
    work = [image.stop - image.start for step in runner.steps for image in step.media]
    assert work[0] == info.images.patches_per_token
    assert len(work) < 6


def test_the_end_of_an_engine_without_progress_names_what_helps(caplog: pytest.LogCaptureFixture) -> None:
    async def body(client: EngineClient) -> None:
        assert await collect(client.submit([1], PARAMS)) == expected([1], PARAMS)

    with_client(Hosts(lambda: process("create_hanging"), thread), body, step_timeout=1.0)
    assert "--step-timeout allows 1 s; if the machine is slow, raise it or lower --max-step-tokens" in caplog.text


def test_rows_are_counted_by_kind_while_somebody_looks() -> None:
    now = [0.0]
    recorder = StepRecorder(lambda: now[0])
    drive = Drive(make_info(), say=parrot, max_step_tokens=8)
    drive.submit(1, [56, 57, 58] * 4, SamplingParams(max_tokens=80, prompt_lookup_num_tokens=3))
    recorder.take()
    taken: list[tuple[StepRows, ...]] = []
    while drive.scheduler.has_work:
        now[0] += 2.0
        batch = drive.scheduler.plan()
        output = drive.runner.step(batch)
        recorder.note(batch, batch.n_tokens, 0.5)
        drive.scheduler.commit(output)
        taken.append(recorder.take())
    steps = [step for part in taken for step in part]
    assert [step.n for step in steps] == list(range(1, len(taken) + 1))
    stats = drive.scheduler.stats()
    assert stats.generated_tokens == 80
    assert stats.prompt_tokens == sum(step.prompt for step in steps) == 12
    assert sum(step.draft for step in steps) == drive.scheduler.stats().drafts("drafted") > 0
    assert sum(step.decode for step in steps) == len(steps) - 2  # the prompt takes two
    now[0] += WATCHED_SECONDS + 1
    recorder.note(batch, 1, 0.5)
    assert recorder.take() == ()
