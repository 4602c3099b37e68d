"""The views with the embedded model: real answers, deaths of the engine and of the server, the screenshots of docs/."""

import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.server import LiveServer, serving
from tests.page.chat import answers, ask, button, set_fields
from tests.page.conftest import DESKTOP, PHONE
from tests.waiting import eventually, strike

Screenshot = Callable[[Page, str], None]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving("--max-sequences", "4", paced=True) as server:
        yield server


def test_a_conversation_and_its_screenshots(server: LiveServer, page: Page, screenshot: Screenshot) -> None:
    page.emulate_media(color_scheme="light")
    page.set_viewport_size(DESKTOP)
    page.goto(server.url)
    expect(page.locator(".composer")).to_contain_text("smollm2-135m-instruct: A toy with 135 million parameters")
    set_fields(page, temperature="0", max_tokens="80")
    ask(page, "What is the capital of Japan?")  # no close second token, whatever the processor rounds to
    expect(answers(page)).to_contain_text("Tokyo")
    expect(page.locator(".cost")).to_have_text(re.compile(r"\d tokens/s · first after .* prompt tokens cached"))
    ask(page, "Write a Python function that says whether a number is prime.")
    expect(page.locator(".cost")).to_have_count(2)
    expect(answers(page).last.locator(".code .hljs-keyword").first).to_be_visible()
    screenshot(page, "chat")
    button(page, "New chat").click()
    set_fields(page, temperature="0", max_tokens="40")
    button(page, "Probabilities").click()
    ask(page, "Name three cities of Italy.")
    expect(page.locator(".cost")).to_be_visible()
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size(PHONE)
    page.locator(".token").nth(3).focus()
    expect(page.get_by_role("tooltip")).to_be_visible()
    screenshot(page, "chat-probabilities")


def test_the_engine_and_then_the_server_are_killed_in_mid_answer(page: Page) -> None:
    """Another engine goes on with the answer. No other server does."""
    with serving(paced=True) as server, server.slow():
        page.goto(server.url)
        set_fields(page, min_tokens="4000", max_tokens="4000")
        ask(page, "Tell me a long story.")
        expect(answers(page)).to_have_text(re.compile(r"\S{3}"))
        before = answers(page).inner_text()
        strike(server.engine_pid, signal.SIGKILL)
        eventually(lambda: len(answers(page).inner_text()) > len(before) + 200, "another engine goes on")
        assert answers(page).inner_text().startswith(before)
        before = answers(page).inner_text()
        server.kill()
        expect(page.locator(".ending.error")).to_contain_text("The connection to the server was lost.")
        assert answers(page).inner_text().startswith(before)
        button(page, "Retry").click()
        expect(page.locator(".ending.error")).to_contain_text("The server does not answer.")


@contextmanager
def full(server: LiveServer) -> Iterator[None]:
    """Four long requests that begin alike hold all places: what the page sends waits."""
    text = "The noria lifts water from a river, one bucket after the other, day and night, to the fields around it. "
    body = {"max_tokens": 1900, "ignore_eos": True, "stream": True}
    with server.slow(), ExitStack() as streams:
        for subject in ("a mill", "a river", "rain", "the sea"):
            request = body | {"prompt": f"{text * 2}Tell of {subject}."}
            response = streams.enter_context(server.http.stream("POST", "/v1/completions", json=request))
            assert response.status_code == 200
        yield


def test_the_wheel(server: LiveServer, page: Page, screenshot: Screenshot) -> None:
    """Four requests run and share their first pages; the load's requests wait for them."""
    page.set_viewport_size(DESKTOP)
    page.goto(f"{server.url}/#wheel")
    with full(server):
        page.get_by_role("button", name="Send load").click()
        queue = page.get_by_role("region", name="Queue").get_by_role("listitem")
        expect(queue.first).to_contain_text("waits for a place among the running requests")
        expect(page.get_by_role("img", name=re.compile(r", [1-9][0-9]* shared,"))).to_be_visible()
        expect(page.get_by_text(re.compile("^Step [0-9,]+: 4 decode"))).to_be_visible()
        screenshot(page, "wheel")
        page.get_by_role("button", name="Stop load").click()
        expect(page.get_by_role("button", name="Send load")).to_be_visible()
    server.wait_idle()


def test_docs(server: LiveServer, page: Page, screenshot: Screenshot) -> None:
    page.set_viewport_size(DESKTOP)
    page.goto(f"{server.url}/docs#post-v1-completions")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("region", name="Answer of /v1/completions")).to_contain_text("Paris")
    screenshot(page, "docs")
