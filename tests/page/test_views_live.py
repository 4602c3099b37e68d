"""Wheel and /docs with the embedded model: the screenshots of docs/ come from here."""

import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.server import LiveServer, serving
from tests.page.conftest import DESKTOP

Screenshot = Callable[[Page, str], None]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with serving("--max-sequences", "4", paced=True) as server:
        yield server


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
