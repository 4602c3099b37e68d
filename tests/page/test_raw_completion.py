"""Raw completions in the chat view: the text goes without the chat template, and an answer continues it."""

import math
import re

import pytest
from playwright.sync_api import Page, expect

from tests.page.chat import answers, ask, button, opened, requests
from tests.service.live import Live, answer


@pytest.fixture
def raw(live: Live, page: Page) -> Page:
    opened(page, live, settings=True)
    page.get_by_label("Raw completion").check()
    page.get_by_label(re.compile("^max_tokens")).fill("4")
    return page


def test_the_model_continues_the_text(live: Live, raw: Page) -> None:
    sent = requests(raw)
    for name in ("System prompt", "JSON schema", "tool_choice"):
        expect(raw.get_by_label(name)).to_have_count(0)
    ask(raw, "abc")
    first = answer("abc", 4)
    expect(answers(raw)).to_have_text(first)
    expect(raw.locator(".cost")).to_have_text(re.compile(r"^4 tokens · .* of 3 prompt tokens cached$"))
    path, body = sent[0]
    assert (path, body["prompt"], body["max_tokens"]) == ("completions", "abc", 4)
    assert body.keys() == {"model", "prompt", "max_tokens", "stream", "stream_options", "return_progress"}
    button(raw, "Continue").click()
    second = first + answer("abc" + first, 4)
    expect(answers(raw)).to_have_text(second)
    ask(raw, " more")
    expect(answers(raw).last).to_have_text(answer(f"abc{second} more", 4))


def test_probabilities_of_a_raw_completion(live: Live, raw: Page) -> None:
    button(raw, "Probabilities").click()
    ask(raw, "abc")
    tokens = raw.get_by_role("listbox").get_by_role("option")
    expect(tokens).to_have_count(4)
    told = live.complete(prompt="abc", max_tokens=4, logprobs=5)["choices"][0]["logprobs"]
    assert [token.inner_text() for token in tokens.all()] == told["tokens"]
    tokens.nth(2).hover()
    tip = raw.get_by_role("tooltip").locator("> div")
    expect(tip).to_have_text(
        [
            f"“{name}”{chance:.{0 if chance >= 10 else 1}f} %"
            for name, logprob in told["top_logprobs"][2].items()
            for chance in [100 * math.exp(logprob)]
        ]
    )
