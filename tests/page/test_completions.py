"""The completions view: streaming, stop, undo, probabilities, parameters, code to copy."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.service.live import Live, answer, idle, running
from tests.waiting import eventually


def show(page: Page, live: Live, text: str = "") -> None:
    page.goto(f"{live.url}/#completions")
    expect(page.get_by_label("max_tokens")).to_be_visible()
    if text:
        page.get_by_label("Text").fill(text)


def done(page: Page) -> None:
    expect(page.get_by_role("button", name="Continue")).to_be_visible()


def test_the_model_continues_the_text_and_undo_takes_it_back(live: Live, page: Page) -> None:
    show(page, live, "abc")
    text = page.get_by_label("Text")
    page.get_by_label("max_tokens").fill("20")
    text.press("Control+Enter")
    first = "abc" + answer("abc", 20)
    expect(text).to_have_value(first)
    expect(page.get_by_text("The limit max_tokens ended it")).to_be_visible()
    page.get_by_role("button", name="Continue").click()
    expect(text).to_have_value(first + answer(first, 20))
    done(page)
    page.get_by_role("button", name="Undo").click()
    expect(text).to_have_value(first)
    page.get_by_role("button", name="Undo").click()
    expect(text).to_have_value("abc")
    expect(page.get_by_role("button", name="Undo")).to_be_disabled()
    page.get_by_label("Text").fill("kept")
    page.reload()
    expect(text).to_have_value("kept")


def test_stop_ends_the_request(page: Page) -> None:
    with running(model="slow") as live:
        show(page, live, "long")
        page.get_by_label("max_tokens").fill("3000")
        for stop in (lambda: page.get_by_role("button", name="Stop").click(), lambda: page.keyboard.press("Escape")):
            before = page.get_by_label("Text").input_value()
            page.get_by_role("button", name="Continue").click()
            expect(page.get_by_label("Text")).not_to_have_value(before)
            stop()
            expect(page.get_by_text("Stopped.")).to_be_visible()
            eventually(idle(live), "the request has ended")
            assert page.get_by_label("Text").input_value().startswith(before)


def test_an_engine_that_dies_leaves_what_came_and_says_so(page: Page) -> None:
    with running(model="slow") as live:
        show(page, live, "long")
        page.get_by_label("max_tokens").fill("3000")
        page.get_by_role("button", name="Continue").click()
        expect(page.get_by_label("Text")).not_to_have_value("long")
        live.hosts[0].kill()
        expect(page.get_by_text("engine")).to_be_visible()
        done(page)
        assert page.get_by_label("Text").input_value().startswith("long" + answer("long", 1))


def test_probabilities_by_hover_and_by_key(live: Live, page: Page) -> None:
    show(page, live, "abc")
    page.get_by_label("max_tokens").fill("4")
    page.get_by_label("of the prompt too").check()
    expect(page.get_by_label("Probabilities of tokens")).to_be_checked()
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_label("Text")).to_have_value("abc" + answer("abc", 4))
    tokens = page.get_by_role("listbox").get_by_role("option")
    expect(tokens).to_have_count(7)
    body = {"prompt": "abc", "max_tokens": 4, "echo": True, "logprobs": 5}
    told = live.complete(**body)["choices"][0]["logprobs"]
    assert [token.inner_text() for token in tokens.all()] == told["tokens"]
    expect(tokens.first).to_have_attribute("aria-label", "“a” no probability")
    chance = round(100 * math.exp(told["token_logprobs"][5]))
    tokens.nth(5).hover()
    expect(page.get_by_role("tooltip")).to_contain_text(f"{chance} %")
    expect(page.get_by_role("tooltip").locator("> div")).to_have_count(len(told["top_logprobs"][5]))
    page.mouse.move(0, 0)
    expect(page.get_by_role("tooltip")).to_be_hidden()
    tokens.first.focus()
    page.keyboard.press("End")
    expect(tokens.last).to_be_focused()
    expect(page.get_by_role("tooltip")).to_be_visible()


def test_only_filled_parameters_are_sent_and_wrong_ones_name_the_limit(live: Live, page: Page) -> None:
    show(page, live, "abc")
    page.get_by_label("temperature").fill("2.5")
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_text("temperature: expected a number, 0 to 2; got 2.5")).to_be_visible()
    expect(page.get_by_label("temperature")).to_be_focused()
    page.get_by_label("temperature").fill("0.5")
    page.get_by_label("stop", exact=False).fill("\\n\nend")
    with page.expect_request("**/v1/completions") as sent:
        page.get_by_role("button", name="Continue").click()
    body = json.loads(sent.value.post_data or "")
    assert body == {
        "model": "fake",
        "prompt": "abc",
        "max_tokens": 64,
        "temperature": 0.5,
        "stop": ["\n", "end"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    done(page)


TEXT = """it's "$HOME" `id` \\ 'end'
JSON of « é »"""


def copied(page: Page, name: str) -> str:
    button = page.get_by_role("button", name=name).element_handle()
    button.click()
    page.wait_for_function("button => button.textContent === 'Copied'", arg=button)
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text


@pytest.mark.parametrize("key", [None, "secret"])
def test_copied_commands_give_the_same_answer(page: Page, tmp_path: Path, key: str | None) -> None:
    with running(api_keys=(key,) if key else ()) as live:
        page.goto(f"{live.url}/#completions")
        page.evaluate("key => key && sessionStorage.setItem('noria-key', key)", key)
        page.reload()
        show(page, live, TEXT)
        page.get_by_label("top_k").fill("5")
        environment = {"PATH": "/usr/bin:/bin", "NORIA_API_KEY": key or ""}
        curl = copied(page, "Copy as curl")
        assert key is None or key not in curl
        done = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, env=environment, check=True)
        events = [line.removeprefix("data: ") for line in done.stdout.splitlines() if line.startswith("data: {")]
        texts = [choice["text"] for event in events for choice in json.loads(event)["choices"]]
        expected = answer(TEXT, 64)
        assert "".join(texts) == expected
        program = tmp_path / "program.py"
        program.write_text(copied(page, "Copy as Python"))
        python = subprocess.run([sys.executable, program], capture_output=True, text=True, env=environment, check=True)
        assert python.stdout == expected + "\n"


def test_a_refused_request_is_told_and_changes_nothing(page: Page) -> None:
    with running(max_model_len=64) as live:
        show(page, live, "x" * 60)
        page.get_by_role("button", name="Continue").click()
        refusal = live.post("/v1/completions", {"prompt": "x" * 60, "max_tokens": 64}).json()["error"]
        expect(page.get_by_text(refusal["message"])).to_be_visible()
        assert page.get_by_label("Text").input_value() == "x" * 60
        expect(page.get_by_role("button", name="Undo")).to_be_disabled()
