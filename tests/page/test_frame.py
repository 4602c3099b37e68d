"""The frame of the page: views, key, colours."""

import re

from playwright.sync_api import Page, expect

from tests.page.chat import unlock
from tests.service.live import Live


def test_views_by_link_and_by_key(live: Live, page: Page) -> None:
    page.goto(live.url)
    expect(page.locator("#model")).to_have_text("fake")
    for name in ("The wheel", "Chat"):
        page.get_by_role("link", name=name).focus()
        page.keyboard.press("Enter")
        expect(page.get_by_role("region", name=name)).to_be_visible()
        expect(page.get_by_role("link", name=name)).to_have_attribute("aria-current", "page")
    assert len(page.locator("main > section:visible").all()) == 1
    for name in ("The wheel", "Chat"):
        page.go_back()
        expect(page.get_by_role("region", name=name)).to_be_visible()


def test_it_asks_for_a_key_and_keeps_it_in_the_tab(locked: Live, page: Page) -> None:
    page.goto(locked.url)
    unlock(page, "wrong")
    expect(page.get_by_role("alert")).to_have_text("The server does not know this key.")
    unlock(page)
    expect(page.locator("#model")).to_have_text("fake")
    page.reload()
    expect(page.locator("#model")).to_have_text("fake")
    assert page.evaluate("JSON.stringify(localStorage)").find("secret") < 0
    other = page.context.new_page()
    other.goto(locked.url)
    expect(other.get_by_label("API key")).to_be_visible()


def test_colours(live: Live, page: Page) -> None:
    page.goto(live.url)
    back = "getComputedStyle(document.body).backgroundColor"
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate(back)
    page.get_by_role("button", name="Colours").click()  # light
    assert page.evaluate(back) != dark
    page.reload()
    expect(page.get_by_role("button", name="Colours: light")).to_be_visible()


SELECTORS = """() => {
  const of = (sheet) => [...sheet.cssRules].flatMap((rule) =>
    rule.styleSheet ? of(rule.styleSheet) : rule.media ? of(rule) : rule.selectorText?.split(", ") ?? []);
  const views = [...document.styleSheets].filter(({ href }) => /\\/(chat|wheel|docs)\\//.test(href));
  return views.flatMap((sheet) => of(sheet).map((selector) => [sheet.href.split("/").at(-2), selector]));
}"""


def test_the_styles_of_a_view_reach_no_other_view(live: Live, page: Page) -> None:
    page.goto(live.url)
    found = page.evaluate(SELECTORS)
    assert {view for view, _ in found} == {"chat", "wheel", "docs"}
    assert [selector for view, selector in found if not re.match(rf"\.({view}\b(?!-)|hljs-)", selector)] == []
