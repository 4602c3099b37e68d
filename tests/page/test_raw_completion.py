"""Raw completions in the chat view: the text goes without the chat template, and an answer continues it."""

import json
import math
import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.page.chat import answers, ask, button
from tests.service.live import Live, answer


@pytest.fixture
def raw(live: Live, page: Page) -> Page:
    page.goto(live.url)
    expect(page.locator("#model")).to_have_text("fake")
    button(page, "Settings").click()
    page.get_by_label("Raw completion").check()
    page.get_by_label(re.compile("^max_tokens")).fill("4")
    return page


def bodies_of(page: Page) -> list[Any]:
    bodies: list[Any] = []
    page.on(
        "request", lambda request: bodies.append((request.url, request.post_data_json)) if request.post_data else None
    )
    return bodies


def test_the_model_continues_the_text(live: Live, raw: Page) -> None:
    bodies = bodies_of(raw)
    for name in ("System prompt", "JSON schema", "tool_choice"):
        expect(raw.get_by_label(name)).to_have_count(0)
    ask(raw, "abc")
    first = answer("abc", 4)
    expect(answers(raw)).to_have_text(first)
    expect(raw.locator(".cost")).to_have_text(re.compile(r"^4 tokens · .* of 3 prompt tokens cached$"))
    assert bodies[0] == (
        f"{live.url}/v1/completions",
        {
            "model": "fake",
            "prompt": "abc",
            "max_tokens": 4,
            "stream": True,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "return_progress": True,
        },
    )
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


@pytest.mark.parametrize("name", ["curl", "Python"])
def test_its_code_is_that_of_a_completion(raw: Page, name: str) -> None:
    ask(raw, 'it\'s "so"')
    expect(raw.locator(".cost")).to_be_visible()
    button(raw, f"Copy as {name}").click()
    expect(button(raw, "Copied")).to_be_visible()
    code = raw.evaluate("navigator.clipboard.readText()")
    assert ("/v1/completions" if name == "curl" else "client.completions.create(") in code
    assert json.dumps('it\'s "so"') in code
