"""The chat view with the fake model: text box, streaming, stop, reload, tabs, faults, branches."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, ViewportSize, expect

from tests.page.chat import answers, ask, button, item, opened, requests, set_fields, unlock
from tests.page.conftest import LOOKS, PHONE
from tests.service.live import Live, answer, hurried, idle, running
from tests.waiting import eventually


def live_text(page: Page) -> Locator:
    """What a screen reader says of the answer."""
    return page.locator("#view-chat [role=status].unseen")


def wait_writing(page: Page) -> None:
    """Wait until the last answer has some text."""
    expect(answers(page).last).to_have_text(re.compile(r"\S{5}"))


def test_the_box_has_the_focus_and_enter_sends(reciting: Live, page: Page) -> None:
    page.goto(reciting.url)
    expect(page.get_by_role("textbox")).to_have_count(1)
    expect(page.get_by_role("textbox", name="Message", exact=True)).to_be_focused()
    expect(page).to_have_title("Chat · Noria")
    page.keyboard.type("first line")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("second")
    page.keyboard.press("Enter")
    expect(answers(page)).to_have_text("first line\nsecond", use_inner_text=True)
    expect(live_text(page)).to_have_text("The answer is complete.")
    expect(page.get_by_label("Message")).to_have_value("")
    expect(page.get_by_label("Message")).to_be_focused()
    expect(page).to_have_title("first line second · Noria")


def test_a_composition_does_not_send(reciting: Live, page: Page) -> None:
    """Enter chooses a word in an input method for Japanese, and must not send."""
    page.goto(reciting.url)
    box = page.get_by_label("Message")
    box.fill("half")
    box.dispatch_event("keydown", {"key": "Enter", "isComposing": True})
    expect(box).to_have_value("half")
    box.press("Enter")
    expect(answers(page)).to_have_text("half")


def test_what_is_sent_while_the_model_loads_is_answered_later(page: Page) -> None:
    with running(model="large", wait="loading") as live:
        page.goto(live.url)
        ask(page, "early")
        expect(page.locator(".notice")).to_have_text("Waiting until the model is ready.")
        with hurried():
            expect(answers(page)).to_have_text(re.compile(r"\S{20}"))


def test_what_an_answer_cost(slow: Live, page: Page) -> None:
    page.goto(slow.url)
    set_fields(page, max_tokens="30")
    ask(page, "cost")
    expect(page.locator(".cost")).to_have_text(
        re.compile(r"^30 tokens · [\d.]+ tokens/s · first after [\d.]+ m?s · 0 of 9 prompt tokens cached$")
    )
    button(page, "Regenerate").click()
    expect(page.locator(".cost")).to_have_text(re.compile("· 0 of 9 prompt tokens cached$"))
    ask(page, "x" * 40)
    expect(page.locator(".cost").last).to_have_text(re.compile("· 32 of 85 prompt tokens cached$"))


@pytest.mark.parametrize("how", ["button", "Escape"])
def test_stop_keeps_the_text_and_ends_the_request(slow: Live, page: Page, how: str) -> None:
    page.goto(slow.url)
    ask(page, "talk")
    wait_writing(page)
    expect(live_text(page)).to_have_text("The answer is being written.")
    with page.expect_response(lambda answer: "/v1/requests/" in answer.url) as ended:
        if how == "button":
            button(page, "Stop").click()
        else:
            page.keyboard.press("Escape")
    assert (ended.value.request.method, ended.value.status) == ("DELETE", 200)
    expect(page.locator(".ending")).to_contain_text("Stopped.")
    expect(live_text(page)).to_have_text("The answer was stopped.")
    expect(page.locator(".cost")).to_have_text(
        re.compile(r"^\d+ tokens · [\d.]+ tokens/s · first after .* of 9 prompt")
    )
    eventually(idle(slow), "the engine has dropped the request")
    text = answers(page).inner_text()
    page.reload()
    expect(answers(page)).to_have_text(text, use_inner_text=True)


def test_an_answer_goes_on_after_a_reload(slow: Live, page: Page) -> None:
    """The same request: the server goes on with it, and is asked for its text from the beginning."""
    sent = requests(page)
    page.goto(slow.url)
    set_fields(page, max_tokens="150")
    ask(page, "reload")
    wait_writing(page)
    page.reload()
    expect(page.locator(".cost")).to_have_text(re.compile("^150 tokens · "))
    assert plain(page) == answer("u:reload;a:", 150)
    assert sent == [sent[0]] * 2
    page.reload()
    expect(page.locator(".cost")).to_have_text(re.compile("^150 tokens · "))
    assert len(sent) == 2


def test_a_reload_while_an_answer_goes_on_from_its_text(slow: Live, page: Page) -> None:
    """Stopped, continued, reloaded while it continues, and stopped: the engine is idle, the text has no gap."""
    page.goto(slow.url)
    ask(page, "reload")
    wait_writing(page)
    button(page, "Stop").click()
    kept = plain(page)
    button(page, "Continue").click()
    eventually(lambda: len(plain(page)) > len(kept) + 5, "the answer goes on")
    page.reload()
    eventually(lambda: len(plain(page)) > len(kept) + 40, "it goes on after the reload, too")
    button(page, "Stop").click()
    eventually(idle(slow), "the engine has dropped the request")
    written = plain(page)
    assert written == answer("u:reload;a:", len(written))


def test_an_answer_that_the_server_does_not_know_any_more_keeps_its_text(page: Page) -> None:
    with running(model="slow", resume_seconds=0) as live:
        page.goto(live.url)
        ask(page, "reload")
        wait_writing(page)
        before = answers(page).inner_text()
        page.reload()
        expect(page.locator(".ending")).to_contain_text("Stopped.")
        assert plain(page).startswith(before)


def test_enter_breaks_the_line_on_a_touch_screen(reciting: Live, browser: Browser) -> None:
    context = browser.new_context(viewport=PHONE, has_touch=True, is_mobile=True)
    page = context.new_page()
    opened(page, reciting)
    expect(page.get_by_text("Enter sends")).to_be_hidden()
    box = page.get_by_label("Message")
    box.fill("first")
    box.press("Enter")
    box.press_sequentially("second")
    expect(box).to_have_value("first\nsecond")
    button(page, "Send").tap()
    expect(answers(page)).to_have_text("first\nsecond", use_inner_text=True)
    button(page, "Edit").tap()
    page.get_by_label("Your text").press("Enter")
    expect(button(page, "Send again")).to_be_visible()
    context.close()


def test_a_reload_at_the_end_of_an_answer_loses_nothing(reciting: Live, page: Page) -> None:
    page.goto(reciting.url)
    ask(page, "first")  # the conversation is stored from now on
    expect(page.locator(".cost")).to_have_count(1)
    page.evaluate(
        """() => {
            const costs = () => document.querySelectorAll(".cost").length;
            const observer = new MutationObserver(() => costs() === 2 && location.reload());
            observer.observe(document.querySelector(".messages"), { childList: true, subtree: true });
        }"""
    )
    with page.expect_event("load"):
        ask(page, "second")
    expect(answers(page)).to_have_text(["first", "second"])
    expect(page.locator(".cost")).to_have_count(2)


def plain(page: Page) -> str:
    """The text of the last answer without what markdown makes of it."""
    page.locator(".message.assistant").last.get_by_role("button", name=re.compile("^Cop(y|ied)$")).click()
    return page.evaluate("navigator.clipboard.readText()")  # type: ignore[no-any-return]


def test_two_tabs_with_one_conversation(reciting: Live, page: Page) -> None:
    page.goto(reciting.url)
    ask(page, "from the first")
    expect(answers(page)).to_have_text("from the first")
    other = page.context.new_page()
    other.goto(reciting.url)
    other.get_by_role("button", name="from the first", exact=True).click()
    ask(other, "from the second")
    expect(answers(page)).to_have_text(["from the first", "from the second"])
    ask(page, "again")
    expect(answers(other)).to_have_text(["from the first", "from the second", "again"])
    other.once("dialog", lambda dialog: dialog.accept())
    item(other, "from the first").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("alert")).to_have_text("This conversation was deleted in another tab.")
    expect(page.locator(".message")).to_have_count(0)


def test_a_full_queue_shows_the_wait(reciting: Live, page: Page) -> None:
    full = {"error": {"message": "the server is full: 256 requests; try again in 2 s", "param": None}}
    path = "**/v1/chat/completions"
    page.route(path, lambda route: route.fulfill(status=429, headers={"retry-after": "2"}, json=full), times=1)
    page.goto(reciting.url)
    ask(page, "patience")
    expect(page.locator(".notice")).to_have_text(re.compile(r"^The server is full: .* Asking again in [12] s\.$"))
    expect(answers(page)).to_have_text("patience")


def test_a_refusal_says_why_and_offers_retry(live: Live, page: Page) -> None:
    page.goto(live.url)
    ask(page, "x" * 600)
    expect(page.locator(".ending.error")).to_contain_text("This model's context is 512 tokens")
    expect(live_text(page)).to_have_text(re.compile("^The answer failed. This model's context is 512 tokens"))
    expect(button(page, "Retry")).to_be_visible()


def test_a_wrong_key(locked: Live, page: Page) -> None:
    page.goto(locked.url)
    unlock(page, "wrong")
    expect(page.get_by_role("alert")).to_have_text("The server does not know this key.")
    button(page, "Cancel").click()
    expect(page.get_by_label("Message")).to_be_focused()
    ask(page, "kept")
    button(page, "Cancel").click()  # it asks again
    expect(page.locator(".ending.error")).to_contain_text("This server needs a key.")
    button(page, "Key").click()
    unlock(page)
    expect(page.locator("#model")).to_have_text("fake")
    button(page, "Retry").click()
    expect(answers(page)).to_have_text("kept")


def test_a_server_that_comes_back_with_another_model(reciting: Live, page: Page) -> None:
    page.route("**/v1/models", lambda route: route.fulfill(json={"data": [{"id": "old"}]}))
    page.route("**/v1/models/old", lambda route: route.fulfill(json={"id": "old", "max_model_len": 64}))
    page.goto(reciting.url)
    expect(page.locator("#model")).to_have_text("old")
    page.unroute_all()
    ask(page, "who are you")
    expect(answers(page)).to_have_text("who are you")
    expect(page.locator("#model")).to_have_text("fake")
    expect(page.locator("#chat-settings")).to_contain_text("1 to 4096")


def test_an_answer_that_is_cut_off_continues(live: Live, page: Page) -> None:
    page.goto(live.url)
    set_fields(page, max_tokens="6")
    ask(page, "cut")
    told = "The answer was cut off at its length limit (max_tokens in Settings)."
    expect(page.locator(".ending")).to_contain_text(told)
    expect(live_text(page)).to_have_text(told)
    button(page, "Continue").click()
    eventually(lambda: plain(page) == answer("u:cut;a:", 12), "the answer has 12 tokens")
    expect(page.locator(".cost")).to_have_text(re.compile(r"^12 tokens · .* · 0 of 8 prompt tokens cached$"))


def test_an_answer_whose_request_is_cancelled_is_shown_as_cut(slow: Live, page: Page) -> None:
    page.goto(slow.url)
    with page.expect_response("**/v1/chat/completions") as asked:
        ask(page, "cancel")
    wait_writing(page)
    assert slow.http.delete(f"/v1/requests/{asked.value.headers['x-request-id']}").json()["cancelled"] == 1
    told = "The answer was cut off: its request was cancelled at the server."
    expect(page.locator(".ending")).to_contain_text(told)
    expect(live_text(page)).to_have_text(told)
    expect(button(page, "Continue")).to_be_visible()


def test_edit_regenerate_and_branches(reciting: Live, page: Page) -> None:
    page.goto(reciting.url)
    for text in ("one", "two"):
        ask(page, text)
        expect(answers(page).last).to_have_text(text)
    first = page.locator(".message.user").first
    first.get_by_role("button", name="Edit").click()
    page.get_by_label("Your text").fill("uno")
    page.get_by_label("Your text").press("Enter")
    expect(answers(page)).to_have_text(["uno"])
    expect(first.locator(".switch")).to_contain_text("2 / 2")
    first.get_by_role("button", name="Earlier version").click()
    expect(answers(page)).to_have_text(["one", "two"])
    expect(first.get_by_role("button", name="Later version")).to_be_focused()
    page.locator(".message.assistant").last.get_by_role("button", name="Regenerate").click()
    expect(page.locator(".message.assistant").last.locator(".switch")).to_contain_text("2 / 2")
    expect(answers(page)).to_have_text(["one", "two"])
    page.reload()
    expect(answers(page)).to_have_text(["one", "two"])
    expect(first.locator(".switch")).to_contain_text("1 / 2")
    first.get_by_role("button", name="Edit").click()
    page.get_by_label("Your text").press("Escape")
    expect(page.get_by_label("Your text")).to_have_count(0)
    expect(answers(page)).to_have_text(["one", "two"])


def test_the_text_follows_its_end_until_somebody_scrolls_up(slow: Live, page: Page) -> None:
    page.set_viewport_size({"width": 400, "height": 400})
    page.goto(slow.url)
    ask(page, "\n".join("line" for _ in range(60)))
    wait_writing(page)
    scroller = page.locator(".scroller")
    from_end = "element => element.scrollHeight - element.scrollTop - element.clientHeight"
    eventually(lambda: scroller.evaluate(from_end) < 5, "the end is on screen")
    scroller.evaluate("element => (element.scrollTop = 10)")
    length = len(answers(page).inner_text())
    eventually(lambda: len(answers(page).inner_text()) > length + 20, "more text")
    assert scroller.evaluate("element => element.scrollTop") == 10
    button(page, "↓ Latest").click()
    eventually(lambda: scroller.evaluate(from_end) < 5, "the end is on screen")
    page.keyboard.press("Escape")


def test_an_example_starts_a_conversation(reciting: Live, page: Page) -> None:
    page.goto(reciting.url)
    expect(page.locator(".example")).to_have_count(3)
    button(page, "What is the capital of Japan?").click()
    expect(answers(page)).to_have_text("What is the capital of Japan?")


@LOOKS
def test_a_conversation_for_a_screen_reader_and_a_phone(
    reciting: Live, page: Page, accessible: Callable[[Page], None], scheme: Any, size: ViewportSize
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(size)
    opened(page, reciting)
    accessible(page)
    rows = "| a | b |\n|---|---|\n| " + "wide" * 40 + f" | 2 |\n\n$${'x + ' * 60}x$$"
    ask(page, f"# Head\n\n- list\n\n```python\ndef f(x):\n    return 'text' + str({'1' * 90})  # note\n```\n\n{rows}")
    expect(answers(page).locator("math")).to_be_visible()
    expect(page.locator(".cost")).to_be_visible()
    button(page, "Probabilities").click()
    ask(page, "colours")
    expect(page.locator(".token")).to_have_count(7)
    for name, panel in {"Settings": "Settings", "History": "Conversations"}.items():
        button(page, name).click()
        accessible(page)
        if size is PHONE:
            button(page.get_by_role("complementary", name=panel), "Close").click()
            accessible(page)


def test_each_finish_reason_of_the_server_has_its_word(live: Live, page: Page) -> None:
    opened(page, live)
    schemas = live.http.get("/openapi.json").json()["components"]["schemas"].values()
    fields = [schema["properties"] for schema in schemas if "finish_reason" in schema.get("properties", {})]
    reasons = {reason for field in fields for reason in field["finish_reason"]["enum"]}
    assert {"stop", "length", "abort"} < reasons
    words = page.evaluate("import('./page/chat/ending.js').then(({ FINISHES }) => FINISHES)")
    assert words.keys() == reasons
    assert [name for name, text in words.items() if text is None] == ["stop", "tool_calls"]  # complete
