"""Where a prompt left the cached prefix and why, judged by comparing prompts token by token."""

from random import Random
from typing import Any

import pytest

from model.sampling_params import SamplingParams
from service.engine.messages import PrefixMiss
from service.engine.scheduling import prefix
from tests.engine.driving import Drive
from tests.fakes import make_info

SIZE = 4
GREEDY = SamplingParams(max_tokens=3)


class Served:
    """A scheduler that serves one request after the other, and what the tenants have sent."""

    def __init__(self, pools: tuple[tuple[int | None, int], ...] = ((None, 64),)) -> None:
        self.drive = Drive(make_info(page_size=SIZE, pools=pools, max_model_len=256))
        self._n = 0

    def serve(self, prompt: list[int], params: SamplingParams = GREEDY, **more: Any) -> tuple[int, PrefixMiss | None]:
        """The cached tokens of a request and its miss, once it is answered."""
        self._n += 1
        self.drive.submit(self._n, prompt, params, **more)
        self.drive.run()
        found = self.drive.admitted(self._n)
        return found.cached, found.miss

    def tokens(self, prompt: list[int]) -> list[int]:
        """What was computed for the latest request: its prompt and its answer, but for the last token."""
        return prompt + self.drive.answers[self._n][:-1]


def common(a: list[int], b: list[int]) -> int:
    return next((n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


@pytest.mark.parametrize("seed", range(6))
def test_random_prompts_miss_where_they_differ_from_all_earlier_ones_of_their_tenant(seed: int) -> None:
    rng = Random(seed)
    served = Served(((None, 2000),))
    sent: dict[tuple[str, str], list[list[int]]] = {}
    for _ in range(40):
        whose = tenant, salt = rng.choice(("a", "b")), rng.choice(("", "salt"))
        earlier = sent.setdefault(whose, [])
        beginning = rng.choice([[], *earlier])
        prompt = [*beginning[: rng.randrange(30)], *(rng.randint(33, 35) for _ in range(rng.randint(1, 20)))]
        cached, miss = served.serve(prompt, tenant=tenant, cache_salt=salt)
        n_reusable = (len(prompt) - 1) // SIZE * SIZE
        known = max((common(prompt, other) for other in earlier), default=0)
        if cached == n_reusable:
            assert miss is None
        else:
            assert miss is not None
            assert miss.at == max(known, cached)  # others may have computed more, in whole pages
            assert cached <= miss.at < cached + SIZE
            continues = any(common(prompt, other) == len(other) == miss.at for other in earlier)
            differs = any(common(prompt, other) == miss.at < len(other) for other in earlier)
            if miss.at and continues and differs:
                assert miss.reason in ("new", "diverged")
            elif continues or not miss.at:
                assert miss.reason == ("salt" if salt and not earlier else "new")
            else:
                assert miss.reason == ("diverged" if differs else "new")
        earlier.append(served.tokens(prompt))


def test_a_prompt_that_hits_all_it_can_has_no_miss() -> None:
    served = Served()
    prompt = [40 + n for n in range(10)]
    served.serve(prompt)
    assert served.serve(prompt) == (8, None)
    assert served.serve([40, 41, 42]) == (0, None)  # no page is full


def test_a_page_that_was_computed_and_is_gone_was_evicted() -> None:
    served = Served(((None, 12),))
    prompt = [40 + n for n in range(20)]
    served.serve(prompt)
    served.serve([90 - n for n in range(42)])
    cached, miss = served.serve(prompt)
    assert cached < 16
    assert miss == PrefixMiss(cached, "evicted")


def test_a_page_that_is_there_is_of_no_use_without_the_window_before_it() -> None:
    """The pool of full attention has all pages; that of the window is so small that it has lost them."""
    served = Served(((None, 64), (9, 8)))
    prompt = [40 + n for n in range(40)]
    served.serve(prompt)
    served.serve([90] * 40)
    cached, miss = served.serve([*prompt[:20], *[33] * 10])
    assert cached < 20
    assert miss == PrefixMiss(cached, "window")


def test_a_salt_says_nothing_about_other_salts_and_tenants() -> None:
    """The first request with a salt has the same answer whether or not others have sent its prompt."""
    prompt = [40 + n for n in range(12)]
    alone, crowded = Served(), Served()
    crowded.serve(prompt, tenant="a")
    crowded.serve(prompt, tenant="a", cache_salt="x")
    crowded.serve(prompt, tenant="b", cache_salt="y")
    for served in (alone, crowded):
        assert served.serve(prompt, tenant="a", cache_salt="z") == (0, PrefixMiss(0, "salt"))
        assert served.serve([*prompt[:6], *[99] * 9], tenant="a", cache_salt="z") == (4, PrefixMiss(6, "diverged"))


def test_tokens_inside_a_page_of_another_tenant_are_not_told() -> None:
    """Whatever a tenant guesses of the tokens after a page, the answer is the same: the end of the page."""
    prompt = [40 + n for n in range(12)]
    served = Served()
    served.serve(prompt, tenant="victim")
    guesses = [[*prompt[:4], *prompt[4:k], *[99] * (12 - k)] for k in range(4, 8)]
    assert {served.serve(guess, tenant="spy" + str(n)) for n, guess in enumerate(guesses)} == {
        (4, PrefixMiss(4, "new"))
    }


def test_requests_that_need_every_position_bypass_the_cache() -> None:
    served = Served()
    prompt = [40 + n for n in range(12)]
    served.serve(prompt)
    assert served.serve(prompt, SamplingParams(max_tokens=1, prompt_logprobs=0)) == (0, PrefixMiss(0, "bypassed"))


def test_the_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix, "LARGEST", 50)
    rng, served = Random(0), Served()
    for _ in range(60):
        served.serve([rng.randint(33, 120) for _ in range(20)], tenant=rng.choice("ab"))
    memory = served.drive.scheduler._trail
    assert len(memory) == 50
    assert max(map(len, memory._blocks.values())) == prefix.BRANCHES
