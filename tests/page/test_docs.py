"""The API's page at /docs: it renders every part of the OpenAPI document and sends requests."""

from collections.abc import Callable
from typing import Any

from playwright.sync_api import Page, ViewportSize, expect

from tests.page.chat import button, foreign, unlock
from tests.page.conftest import LOOKS
from tests.service.live import Live

OPEN_ALL = "document.querySelectorAll('details:not([open])').forEach((box) => { box.open = true; })"


def operation(page: Page, name: str) -> None:
    page.locator(f".operation:has(h3:text-is('{name}')) > summary").click()


def test_it_has_every_operation_field_and_status(live: Live, page: Page) -> None:
    document = live.http.get("/openapi.json").json()
    page.goto(f"{live.url}/docs")
    boxes = page.locator(".operation")
    expected = [(method.upper(), path) for path, methods in document["paths"].items() for method in methods]
    expect(boxes).to_have_count(len(expected))
    page.evaluate(OPEN_ALL)
    for box in boxes.all():
        method, path = box.locator("> summary .method").inner_text(), box.locator("> summary h3").inner_text()
        expected.remove((method, path))
        item = document["paths"][path][method.lower()]
        shown = box.inner_text()
        for status, response in item["responses"].items():
            assert f"{status} {response['description']}".replace("`", "") in shown
        for content in item.get("requestBody", {}).get("content", {}).values():
            schema = document["components"]["schemas"][content["schema"]["$ref"].split("/")[-1]]
            names = {name.inner_text() for name in box.locator("code").all()}
            missing = schema.get("properties", {}).keys() - names
            assert not [name for name in missing if "description" in schema["properties"][name]]


def test_operations_are_in_groups_and_chat_is_first(live: Live, page: Page) -> None:
    page.goto(f"{live.url}/docs")
    expect(page.locator(".operation h3").first).to_have_text("/v1/chat/completions")
    groups = page.locator(".docs section")
    expect(groups.get_by_role("heading", level=2)).to_have_text(
        [
            *("Chat", "Stored responses and conversations", "Text, embeddings and tokens", "Audio"),
            *("Models and adapters", "Ollama", "The server"),
        ]
    )
    ollama = groups.filter(has=page.get_by_role("heading", name="Ollama")).locator(".operation h3")
    assert all(name.startswith("/api/") for name in ollama.all_inner_texts())
    page.get_by_label("Search").fill("anthropic")
    expect(groups.filter(has=page.get_by_role("heading", name="Ollama"))).to_be_hidden()


def test_it_sends_a_request_with_the_key_of_the_tab(locked: Live, page: Page) -> None:
    page.goto(f"{locked.url}/docs#post-v1-completions")
    unlock(page)
    answer = page.get_by_role("region", name="Answer of /v1/completions")
    for body, status, told in (
        ('{"prompt": "u:hi;a:"}', "Status 200, request", '"text": "hi"'),
        ('{"prompt": "a", "temperature": 3}', "Status 400", '"param": "temperature"'),
        ('{"prompt": ', "The body is no JSON", '"param": "temperature"'),
        ('{"prompt": "u:hi;a:", "stream": true}', "Status 200", "data: [DONE]"),
    ):
        page.get_by_label("Body, as JSON").fill(body)
        button(page, "Send").click()
        expect(page.get_by_text(status)).to_be_visible()
        expect(answer).to_contain_text(told)


def test_a_stream_can_be_stopped(slow: Live, page: Page) -> None:
    page.goto(f"{slow.url}/docs#post-v1-completions")
    page.get_by_label("Body, as JSON").fill('{"prompt": "a", "stream": true, "max_tokens": 3000}')
    button(page, "Send").click()
    expect(page.get_by_role("region", name="Answer of /v1/completions")).to_contain_text("text_completion")
    button(page, "Stop").click()
    expect(page.get_by_text("Stopped.")).to_be_visible()


def test_a_path_with_a_parameter(live: Live, page: Page) -> None:
    page.goto(f"{live.url}/docs")
    operation(page, "/v1/models/{name}")
    page.get_by_label("name", exact=True).fill("org/alias")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("region", name="Answer of /v1/models/{name}")).to_contain_text('"id": "org/alias"')


def test_search_and_keyboard(live: Live, page: Page) -> None:
    page.goto(f"{live.url}/docs")
    search = page.get_by_label("Search")
    search.fill("logit_bias completions")
    shown = page.locator(".operation:visible h3")
    chat, text = "/v1/chat/completions", "/v1/completions"
    expect(shown).to_have_text([chat, f"{chat}/render", text, "/v1/fim/completions", f"{text}/render"])
    search.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_label("Body, as JSON")).to_be_visible()
    search.fill("no such thing")
    expect(page.get_by_text("Nothing matches.")).to_be_visible()


def test_links_between_the_pages(live: Live, page: Page) -> None:
    page.goto(live.url)
    page.get_by_role("link", name="API").click()
    expect(page.get_by_role("heading", name="The API of Noria")).to_be_visible()
    page.get_by_role("link", name="The wheel").click()
    expect(page.get_by_role("region", name="The wheel", exact=True)).to_be_visible()


@LOOKS
def test_a_screen_reader_a_phone_and_no_other_origin(
    live: Live, page: Page, accessible: Callable[[Page], None], scheme: Any, size: ViewportSize
) -> None:
    others = foreign(page, live)
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(size)
    page.goto(f"{live.url}/docs")
    operation(page, "/v1/completions")
    for _ in range(2):
        page.evaluate(OPEN_ALL.replace("details", ".operation[open] details"))
    accessible(page)
    assert others == []
