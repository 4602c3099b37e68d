"""Prompts that begin inside a page, judged by comparing them token by token with all that was computed before."""

from dataclasses import replace
from random import Random

import pytest

from model.sampling_params import SamplingParams
from service.engine.messages import PrefixMiss
from service.engine.scheduling.prefix import LEAST_COPIED
from tests.engine.driving import Drive, expected
from tests.fakes import make_info

SIZE = 8
PARAMS = SamplingParams(max_tokens=5)


def new_drive(pools: tuple[tuple[int | None, int], ...] = ((None, 64),)) -> Drive:
    info = make_info(page_size=SIZE, pools=pools, max_model_len=128)
    return Drive(replace(info, copies_pages=True), max_step_tokens=20)


def serve(drive: Drive, prompt: list[int], **more: str) -> int:
    """The cached tokens of a request, once it is answered, rightly."""
    number = len(drive.updates)
    drive.submit(number, prompt, PARAMS, **more)
    drive.run()
    assert drive.answers[number] == expected(prompt, PARAMS)
    return drive.admitted(number).cached


def common(a: list[int], b: list[int]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("seed", range(4))
def test_a_prompt_begins_where_it_differs_from_all_earlier_ones(seed: int) -> None:
    """Salts divide them. A few tokens are not worth a copy of their page."""
    rng, drive = Random(seed), new_drive(((None, 2000),))
    computed: dict[str, list[list[int]]] = {"": [], "salt": []}
    for _ in range(30):
        salt = rng.choice(("", "salt"))
        beginning = rng.choice([[], *computed[salt]])[: rng.randrange(60)]
        prompt = beginning + [rng.randint(33, 35) for _ in range(rng.randint(1, 20))]
        known = max((min(common(prompt, other), len(prompt) - 1) for other in computed[salt]), default=0)
        within = known % SIZE
        assert serve(drive, prompt, cache_salt=salt) == known - (within if within < LEAST_COPIED else 0)
        answer = drive.answers[len(drive.updates) - 1]
        computed[salt].append(prompt + answer[:-1])


@pytest.mark.parametrize("window", [1, 5, 8, 20])
def test_a_window_sees_what_was_copied_and_the_pages_before(window: int) -> None:
    """The windowed pool has lost all but the last pages of the first prompt. The second one continues its answer."""
    drive = new_drive(((None, 64), (window, 64)))
    prompt = [40 + n % 50 for n in range(65)]
    assert serve(drive, prompt) == 0
    chat = prompt + drive.answers[0]
    assert serve(drive, [*chat, 7, 7, 7]) == len(chat) - 1
    (copies,) = (batch.copies for batch in drive.runner.steps if batch.copies)
    assert [copy.pool for copy in copies] == [0, 1]


def test_tenants_share_whole_pages_only() -> None:
    """Token by token, one could find out what another has sent."""
    drive, prompt = new_drive(), list(range(33, 53))
    assert serve(drive, prompt, tenant="a") == 0
    assert serve(drive, [*prompt[:14], 9], tenant="b") == SIZE
    assert serve(drive, [*prompt[:14], 8], tenant="a") == 14


def test_the_cache_says_that_the_prompt_left_it_behind_the_copied_tokens() -> None:
    drive, prompt = new_drive(), list(range(33, 53))
    serve(drive, prompt)
    assert serve(drive, [*prompt[:13], 9, 9, 9, 9]) == 13
    assert drive.admitted(1).miss == PrefixMiss(13, "diverged")


def test_a_page_that_was_evicted_is_not_copied() -> None:
    drive = new_drive(((None, 16),))
    first = list(range(33, 53))
    serve(drive, first)
    assert serve(drive, [60] * 120) == 0
    assert serve(drive, [*first[:14], 9]) == 0


def test_the_last_page_may_be_its_own_copy() -> None:
    """Of four pages the prompt needs three. Two are cached with its beginning, and the last is written by nobody."""
    drive = new_drive(((None, 4),))
    serve(drive, list(range(33, 46)))
    drive.submit(8, [70] * 10, PARAMS)
    drive.step()
    assert serve(drive, [*range(33, 45), 9]) == 12
