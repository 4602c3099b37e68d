"""What a person does in the chat view, and what is there."""

from playwright.sync_api import Locator, Page


def ask(page: Page, text: str) -> None:
    box = page.get_by_label("Message")
    box.fill(text)
    box.press("Enter")


def answers(page: Page) -> Locator:
    return page.locator(".message.assistant .content")


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=True)


def item(page: Page, title: str) -> Locator:
    """The entry of a conversation in the list."""
    named = page.get_by_role("button", name=title, exact=True)
    return page.get_by_role("list", name="Conversations").get_by_role("listitem").filter(has=named)
