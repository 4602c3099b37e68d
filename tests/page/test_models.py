"""The menu of a server with several models: states, loading, and the switch inside a conversation."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, Route, ViewportSize, expect

from tests.page.chat import answers, ask, button, opened, requests, set_fields, unlock
from tests.page.conftest import LOOKS
from tests.page.pictures import holds, picture, push, stand_in
from tests.service.hosting.serving import LATE, serving, states
from tests.service.live import Live, hurried
from tests.waiting import eventually


@pytest.fixture
def several(tmp_path: Path) -> Iterator[Live]:
    """One that is ready, one that loads until somebody hurries, and one that cannot be loaded."""
    entries = {
        "small": {"source": "recite", "aliases": ["nickname"], "lora": [f"tuned={tmp_path}"]},
        "late": {"source": "large", **LATE},
        "bad": {"source": "broken"},
    }
    with serving(tmp_path, entries) as live:
        yield live


def menu(page: Page) -> Locator:
    return page.get_by_role("list", name="Models")


def look(page: Page) -> None:
    """Open the menu."""
    page.get_by_role("button", name=re.compile("^Model: ")).click()


def choose(page: Page, name: str) -> None:
    look(page)
    button(menu(page), name).click()


def line(page: Page, name: str) -> Locator:
    """The entry of a model in the menu."""
    return menu(page).get_by_role("listitem").filter(has=page.get_by_role("button", name=name, exact=True))


def labels(page: Page) -> Locator:
    """The names of models above answers."""
    return page.locator(".message.assistant .label")


def n_answers(live: Live, model: str) -> float:
    return live.metric("noria_requests_total", model=model, outcome="length")


def test_one_model_has_no_menu(live: Live, page: Page) -> None:
    opened(page, live)
    ask(page, "hi")
    expect(page.locator(".cost")).to_have_count(1)
    expect(page.locator("#models button")).to_have_count(0)
    expect(labels(page)).to_have_count(0)


def test_a_switch_inside_a_conversation(several: Live, page: Page) -> None:
    page.goto(several.url)
    expect(page.locator("#model")).to_have_text("ready")
    assert states(several)["late"] == "unloaded"  # to look at the page loads nothing
    set_fields(page, max_tokens="6")
    ask(page, "first question")
    expect(page.locator(".cost")).to_have_count(1)
    expect(labels(page)).to_have_count(0)
    sent = requests(page)
    choose(page, "late")
    expect(page.locator("#model")).to_have_text("loading")
    expect(page.locator("header").get_by_role("progressbar", name="Loading of late")).to_have_attribute("value", "0.5")
    expect(page.locator("header .loading").first).to_contain_text("loading weights")
    expect(button(page, "Model: late")).to_be_visible()
    ask(page, "second question")
    expect(page.locator(".notice:visible")).to_have_text("Waiting until the model is ready.")
    with hurried():
        expect(page.locator(".cost")).to_have_count(2)
    expect(page.locator("#model")).to_have_text("ready")
    expect(page.locator("#models progress")).to_have_count(0)
    ((_, body),) = sent
    assert body["model"] == "late"
    assert [message["content"] for message in body["messages"][::2]] == ["first question", "second question"]
    assert n_answers(several, "late") == n_answers(several, "small") == 1
    expect(labels(page)).to_have_text(["small", "late"])


def test_the_choice_stays_in_the_browser(several: Live, page: Page) -> None:
    opened(page, several)
    with hurried():
        choose(page, "late")
        expect(page.locator("#model")).to_have_text("ready")
    page.reload()
    expect(button(page, "Model: late")).to_be_visible()
    several.post("/v1/models/unload", {"model": "late"})
    other = page.context.new_page()
    other.goto(several.url)
    expect(button(other, "Model: late")).to_be_visible()
    expect(other.locator("#model")).to_have_text("not loaded")
    with hurried():  # a page that thinks it is loaded
        ask(page, "hi")
        expect(page.locator(".cost")).to_have_count(1)


def test_a_choice_that_is_gone_is_the_first_model(several: Live, page: Page) -> None:
    opened(page, several)
    page.evaluate("localStorage.setItem('noria-model/', 'gone')")
    page.reload()
    expect(button(page, "Model: small")).to_be_visible()


def test_the_menu_has_states_reasons_and_adapters_but_no_aliases(several: Live, page: Page) -> None:
    eventually(lambda: states(several)["bad"] == "failed", "the load has failed")
    reason = several.http.get("/v1/models/bad").json()["reason"]
    opened(page, several)
    look(page)
    names = menu(page).get_by_role("button")
    expect(names).to_have_text(["small", "tuned", "late", "bad"], use_inner_text=True)
    expect(button(menu(page), "small")).to_have_attribute("aria-current", "true")
    for name, state in {"small": "ready", "tuned": "ready", "late": "not loaded", "bad": f"failed: {reason}"}.items():
        expect(line(page, name).locator(".state")).to_have_text(state)
    several.post("/v1/models/unload", {"model": "small"})
    page.keyboard.press("Escape")
    expect(menu(page)).to_be_hidden()
    look(page)
    expect(line(page, "tuned").locator(".state")).to_have_text("not loaded")


def test_a_model_that_cannot_be_loaded_says_why(several: Live, page: Page) -> None:
    opened(page, several)
    reason = several.http.get("/v1/models/bad").json()["reason"]
    choose(page, "bad")
    expect(page.locator("#model")).to_have_text(f"failed: {reason}")
    ask(page, "hello?")
    expect(page.locator(".ending.error")).to_contain_text(f"The model bad could not be loaded: {reason}")
    choose(page, "small")
    button(page, "Retry").click()
    expect(answers(page)).to_have_text("hello?")


def test_an_adapter_is_chosen_as_a_model(several: Live, page: Page) -> None:
    opened(page, several)
    sent = requests(page)
    choose(page, "tuned")
    expect(page.locator("#model")).to_have_text("ready")
    ask(page, "hi")
    expect(answers(page)).to_have_text("hi")
    assert [body["model"] for _, body in sent] == ["tuned"]


def test_escape_closes_the_menu_and_not_the_answer(tmp_path: Path, page: Page) -> None:
    with serving(tmp_path, {"slow": {"source": "slow"}, "small": {}}) as live:
        opened(page, live)
        ask(page, "talk")
        expect(answers(page)).to_have_text(re.compile(r"\S{5}"))
        look(page)
        page.keyboard.press("Escape")
        expect(menu(page)).to_be_hidden()
        expect(button(page, "Stop")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator(".ending")).to_contain_text("Stopped.")


def test_a_key_that_may_not_load_models_leaves_it_to_the_request(tmp_path: Path, page: Page) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[[keys]]\nname = "guest"\nkey = "secret"\n')
    with serving(tmp_path, {"small": {}, "late": {"source": "large", **LATE}}, api_key_file=keys) as live:
        page.goto(live.url)
        unlock(page)
        choose(page, "late")
        expect(page.locator("#model")).to_have_text("not loaded")
        set_fields(page, max_tokens="6")
        held: list[Route] = []
        page.route("**/v1/chat/completions", lambda route: held.append(route))
        ask(page, "for a guest")
        for _ in range(4):  # the page looks on until the request arrives
            page.wait_for_event("response", lambda response: response.url.endswith("/v1/models"))
        held[0].continue_()
        progress = page.locator("header").get_by_role("progressbar", name="Loading of late")
        expect(progress).to_have_attribute("value", "0.5")
        with hurried():
            expect(page.locator(".cost")).to_have_count(1)
            expect(page.locator("#model")).to_have_text("ready")


def test_the_wheel_follows_the_choice(several: Live, page: Page) -> None:
    stand_in(page)
    page.goto(f"{several.url}/#wheel")
    expect(page.locator("#model")).to_have_text("ready")
    steps = [{"n": 7, "decode": 1, "prompt": 0, "draft": 0, "sequences": 1, "seconds": 0.02}]
    push(page, picture(steps=steps))
    expect(page.get_by_text("Step 7: 1 decode row of 1 request")).to_be_visible()
    with hurried():
        choose(page, "late")
        expect(page.get_by_text("No step since this page was opened.")).to_be_visible()
        expect(page.locator("#model")).to_have_text("ready")
    holds(page, "window.feeds.filter(({ open }) => open).length === 1")
    push(page, picture(state="unloaded"))
    expect(page.locator(".banner")).to_have_text("The model is not loaded. The next request loads it.")
    choose(page, "small")
    choose(page, "tuned")  # an adapter of the same engine
    push(page, picture(steps=steps))
    expect(page.get_by_text("Step 7: 1 decode row of 1 request")).to_be_visible()


def test_the_feed_and_the_load_of_the_wheel_are_the_chosen_model_s(several: Live, page: Page) -> None:
    opened(page, several)
    choose(page, "tuned")
    sent = requests(page)
    with page.expect_request(lambda request: request.url.endswith("/v1/engine/events?model=small")):
        page.get_by_role("link", name="The wheel").click()
    refusal = {"error": {"message": "the server is full"}}
    page.route("**/v1/completions", lambda route: route.fulfill(status=429, json=refusal))
    page.get_by_role("button", name="Send load").click()
    expect(page.get_by_text("The load failed: the server is full", exact=True)).to_be_visible()
    assert [body["model"] for _, body in sent] == ["tuned"]
    with page.expect_request(lambda request: request.url.endswith("/v1/engine/events?model=late")):
        choose(page, "late")
    banner = page.locator(".banner")
    expect(banner).to_have_text("The model loads.")
    with hurried():
        expect(page.locator("#model")).to_have_text("ready")
    expect(banner).to_have_text("bad cannot be loaded: found nothing at 'broken', expected a model.")
    several.post("/v1/models/unload", {"model": "late"})
    expect(banner).to_have_text("The model is not loaded. The next request loads it.")


def test_the_api_tries_the_chosen_model(several: Live, page: Page) -> None:
    opened(page, several)
    choose(page, "tuned")
    expect(page.locator("#model")).to_have_text("ready")
    page.goto(f"{several.url}/docs")
    for path in ("/v1/fim/completions", "/v1/embeddings"):
        page.get_by_role("heading", name=path, exact=True).click()
        expect(page.locator(f"#post-{path[1:].replace('/', '-')} textarea")).to_have_value(
            re.compile('"model": "tuned"')
        )


@LOOKS
def test_a_screen_reader_and_a_phone(
    several: Live, page: Page, accessible: Callable[[Page], None], scheme: Any, size: ViewportSize
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(size)
    opened(page, several)
    choose(page, "late")
    expect(page.locator("header").get_by_role("progressbar")).to_be_visible()
    look(page)
    expect(line(page, "late").get_by_role("progressbar", name="Loading of late")).to_be_visible()
    accessible(page)
    with hurried():
        expect(line(page, "late").locator(".state")).to_have_text("ready")


def test_a_name_may_have_any_characters(tmp_path: Path, page: Page) -> None:
    name = "org/c#?%20 x"
    with serving(tmp_path, {"a": {}, name: {"source": "recite", **LATE}}) as live:
        opened(page, live)
        choose(page, name)
        eventually(lambda: states(live)[name] == "ready", "the page has loaded it")
        ask(page, "hi")
        expect(answers(page)).to_have_text("hi")


def test_a_key_that_may_use_no_model_is_told(tmp_path: Path, page: Page) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text('[[keys]]\nname = "guest"\nkey = "secret"\nmodels = ["other"]\n')
    with serving(tmp_path, {"small": {}}, api_key_file=keys) as live:
        page.goto(live.url)
        unlock(page)
        expect(page.locator("#model")).to_have_text("This key may use none of the models.")
