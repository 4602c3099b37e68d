"""What a person does in the chat view, and what is there."""

import json
import re
from typing import Any

from playwright.sync_api import Dialog, Locator, Page, Request, Route, expect

from tests.service.live import Live


def opened(page: Page, live: Live, settings: bool = False) -> None:
    """Open the page, once its model is known, with the panel of settings or without."""
    page.goto(live.url)
    expect(page.locator("#model")).not_to_have_text("Connecting…")
    if settings:
        button(page, "Settings").click()


def unlock(page: Page, key: str = "secret") -> None:
    """Give the key that the page asks for."""
    page.get_by_label("API key").fill(key)
    page.get_by_label("API key").press("Enter")


def set_fields(page: Page, **fields: str) -> None:
    """Fill in fields of the settings, whose panel is closed before and after."""
    button(page, "Settings").click()
    for name, value in fields.items():
        page.get_by_label(re.compile(f"^{name}\\b")).fill(value)
    button(page, "Settings").click()


def ask(page: Page, text: str) -> None:
    box = page.get_by_label("Message")
    box.fill(text)
    box.press("Enter")


def answers(page: Page) -> Locator:
    return page.locator(".message.assistant .content")


def button(page: Page | Locator, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def item(page: Page, title: str) -> Locator:
    """The entry of a conversation in the list."""
    named = page.get_by_role("button", name=title, exact=True)
    return page.get_by_role("list", name="Conversations").get_by_role("listitem").filter(has=named)


def requests(page: Page) -> list[tuple[str, Any]]:
    """The page's requests for answers, as (path, body), while they are sent."""
    sent: list[tuple[str, Any]] = []

    def note(request: Request) -> None:
        if request.url.endswith("completions"):
            sent.append((request.url.partition("/v1/")[2], request.post_data_json))

    page.on("request", note)
    return sent


def with_card(page: Page, **facts: Any) -> None:
    """Add facts to the model's card."""

    def fulfil(route: Route) -> None:
        route.fulfill(json=route.fetch().json() | facts)

    page.route(re.compile(r"/v1/models/."), fulfil)


def replies(page: Page, *answers: list[dict[str, Any] | str], finish: str = "stop") -> None:
    """The chat's answers, in place of the server's: the deltas of each, or the texts in them. The last one stays."""
    left = list(answers)

    def fulfil(route: Route) -> None:
        deltas = [{"content": delta} if isinstance(delta, str) else delta for delta in left[0]]
        end = "tool_calls" if "tool_calls" in deltas[-1] else finish
        choices: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
        choices.append({"index": 0, "delta": {}, "finish_reason": end})
        events = [*(json.dumps({"choices": [choice]}) for choice in choices), "[DONE]"]
        del left[: len(left) > 1]
        body = "".join(f"data: {event}\n\n" for event in events)
        route.fulfill(content_type="text/event-stream", body=body)

    page.route("**/v1/chat/completions", fulfil)


def foreign(page: Page, live: Live) -> list[str]:
    """The dialogs that the page opens, and its requests to others than the server."""
    found: list[str] = []

    def note(dialog: Dialog) -> None:
        found.append(dialog.message)
        dialog.dismiss()

    page.on("request", lambda request: None if live.url in request.url else found.append(request.url))
    page.on("dialog", note)
    return found
