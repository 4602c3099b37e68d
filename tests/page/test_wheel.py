"""The wheel: what it draws of a picture, when it looks, and what it warns of."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from tests.page.chat import unlock
from tests.page.conftest import LOOKS
from tests.page.pictures import holds, picture, push, sequence, stand_in, table
from tests.service.live import Live, idle
from tests.waiting import eventually

POOL = {"window": None, "page_size": 16, "pages": 512, "held": 150, "shared": 20, "cached": 60, "free": 302}
BUSY = picture(
    sequences=[
        sequence(1, computed=130, generated=90, pages=[table(9, shared=2)]),
        sequence(2, "prompt", prompt=400, computed=160, generated=0, cached=32, pages=[table(10, start=50)]),
        sequence(3, "waiting", prompt=1234, reason="pages", pages=[]),
        sequence(4, "preempted", generated=12, reason="fairness", pages=[]),
    ],
    pools=[POOL],
    steps=[{"n": 7, "decode": 1, "prompt": 120, "draft": 3, "sequences": 2, "seconds": 0.0213}],
    tokens_per_second=312.4,
    prompt_tokens_per_second=1520.0,
    ttft_seconds=0.231,
    queue_seconds=1.26,
    preemptions=3,
    prefix={"queried": 1000, "hit": 420, "disk": 130},
    drafts={"proposed": 100, "accepted": 61, "drafters": ["prompt_lookup", "self"]},
)


def show(page: Page, live: Live) -> None:
    stand_in(page)
    page.goto(f"{live.url}/#wheel")


TWO_FRAMES = "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"


def drawn(page: Page) -> set[tuple[int, ...]]:
    """The colours on the canvas of the rings."""
    script = """() => {
      const canvas = document.querySelector("#view-wheel canvas");
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const found = {};
      for (let i = 0; i < data.length; i += 4) {
        if (data[i + 3] === 255) found[data.slice(i, i + 3)] = (found[data.slice(i, i + 3)] ?? 0) + 1;
      }
      return Object.keys(found).filter((colour) => found[colour] > 50);
    }"""
    return {tuple(map(int, colour.split(","))) for colour in page.evaluate(script)}


def banner(page: Page) -> Any:
    return page.locator(".banner")


def test_it_shows_a_picture(live: Live, page: Page) -> None:
    show(page, live)
    push(page, BUSY)
    for name, value in {
        "Running": "2",
        "Waiting": "2",
        "Tokens/s": "312",
        "Prompt tokens/s": "1,520",
        "First token": "231 ms",
        "In the queue": "1.3 s",
        "Preemptions": "3",
        "Prefix hits": "42 %",
        "From disk": "13 %",
        "Drafts kept": "61 % (prompt lookup, self)",
    }.items():
        tile = page.locator(".tiles > div").filter(has=page.locator("dt", has_text=re.compile(f"^{name}$")))
        expect(tile.locator("dd")).to_have_text(value)
    expect(page.get_by_role("img", name="130 held, 20 shared, 60 cached, 302 free of 512 pages")).to_be_visible()
    expect(page.get_by_text("Step 7: 1 decode + 120 prompt + 3 draft rows of 2 requests, 21 ms.")).to_be_visible()
    expect(page.get_by_role("region", name="Queue").get_by_role("listitem")).to_have_text(
        [
            "#3, a prompt of 1,234 tokens, waits for pages",
            "#4, preempted after 12 tokens, waits for its turn: another key comes first",
        ]
    )
    page.get_by_text("As a table").click()
    cells = page.get_by_role("table").get_by_role("row").nth(1).get_by_role("cell")
    expect(cells).to_have_text(["decode", "40", "0", "130", "90", "9", "2", ""])


def test_it_names_requests_and_keys(live: Live, slow: Live, page: Page) -> None:
    """For one who may see them. Others have the numbers."""
    request = {"id": "job", "key": "team", "root": "fake", "choices": [{"index": 0, "sequence": 3}]}
    page.route("**/v1/requests", lambda route: route.fulfill(json={"object": "list", "data": [request]}))
    show(page, live)
    push(page, BUSY)
    waiting = page.get_by_role("region", name="Queue").get_by_role("listitem")
    expect(waiting).to_have_text([re.compile(r"^#3 \(job of team\), a prompt of"), re.compile("^#4, preempted")])
    page.unroute("**/v1/requests")
    page.context.new_page().goto(f"{slow.url}/#wheel")
    other = page.context.pages[-1]
    other.get_by_role("button", name="Send load").click()
    other.get_by_text("As a table").click()
    row = other.get_by_role("table").get_by_role("row").nth(1).get_by_role("rowheader")
    expect(row).to_have_text(re.compile(r"^#\d+ \([0-9a-f]{32}\)$"))
    other.get_by_role("button", name="Stop load").click()
    eventually(idle(slow), "the requests have ended")
    other.close()


@pytest.mark.parametrize(
    ("windows", "text"),
    [
        ([None], "With full attention a ring grows with its text."),
        ([4096], "With a window of 4,096 tokens a ring keeps its size: where a page leaves, the next one fills."),
    ],
)
def test_it_says_how_a_ring_behaves(live: Live, page: Page, windows: list[int | None], text: str) -> None:
    show(page, live)
    push(page, {**BUSY, "pools": [{**POOL, "window": window} for window in windows]})
    expect(page.get_by_text(text, exact=True)).to_be_visible()


def test_rings_come_and_go(live: Live, page: Page) -> None:
    page.emulate_media(reduced_motion="reduce", color_scheme="light")
    show(page, live)
    held, shared = (11, 95, 158), (27, 110, 60)  # --accent and --good of base.css
    push(page, BUSY)
    holds(page, "document.querySelector('.tiles dd').textContent === '2'")
    page.evaluate(TWO_FRAMES)
    assert {held, shared} <= drawn(page)
    push(page, picture(1000.1))
    holds(page, "document.querySelector('.tiles dd').textContent === '0'")
    page.evaluate(TWO_FRAMES)
    assert not {held, shared} & drawn(page)


RINGS = """async ([pictures, still]) => {
  const { Rings } = await import("./page/wheel/rings.js");
  const rings = new Rings();
  return pictures.map((picture, i) => {
    rings.update(picture, 1000 * i);
    rings.advance(1000 * i, still);
    return [...rings.rings.values()].map(({ id, place, slots, shown }) => [id, place, slots[0], shown]);
  });
}"""


def test_a_request_keeps_its_place_and_a_new_one_takes_a_free_one(live: Live, page: Page) -> None:
    """A place is free once its ring has faded, one picture after the request ended."""
    page.goto(live.url)
    pictures = [
        picture(sequences=[sequence(id) for id in ids]) for ids in ([1, 2, 3], [1, 3], [1, 3, 4], [3, 4, 5, 6], [3, 7])
    ]
    places = page.evaluate(RINGS, [pictures, True])
    assert [{ring[0]: ring[1] for ring in rings} for rings in places] == [
        {1: 0, 2: 1, 3: 2},
        {1: 0, 3: 2},
        {1: 0, 3: 2, 4: 1},
        {3: 2, 4: 1, 5: 3, 6: 4},
        {3: 2, 7: 0},
    ]


def test_a_ring_with_a_window_keeps_its_slots_and_one_without_grows(live: Live, page: Page) -> None:
    page.goto(live.url)

    def slots(window: int | None, tables: list[dict[str, Any]]) -> list[int]:
        pools = [{**POOL, "window": window}]
        pictures = [picture(pools=pools, sequences=[sequence(1, pages=[item])]) for item in tables]
        return [rings[0][2] for rings in page.evaluate(RINGS, [pictures, True])]

    turning = [table(1), table(4), table(5, first=3), table(5, first=100)]
    assert slots(64, turning) == [5, 5, 5, 5]
    assert slots(None, [table(1), table(4), table(5), table(100), table(1000)]) == [4, 4, 8, 128, 1024]


def test_it_looks_only_while_it_is_shown(live: Live, page: Page) -> None:
    show(page, live)
    push(page, BUSY)
    assert page.evaluate("window.feeds.length") == 1
    page.get_by_role("link", name="Chat").click()
    holds(page, "!window.feeds.at(-1).open")
    page.get_by_role("link", name="The wheel").click()
    holds(page, "window.feeds.length === 2 && window.feeds.at(-1).open")
    page.evaluate("""() => {
      Object.defineProperty(document, "hidden", { get: () => window.behind, configurable: true });
      window.behind = true;
      document.dispatchEvent(new Event("visibilitychange"));
    }""")
    holds(page, "!window.feeds.at(-1).open")
    page.evaluate("window.behind = false; document.dispatchEvent(new Event('visibilitychange'))")
    holds(page, "window.feeds.length === 3 && window.feeds.at(-1).open")
    push(page, picture())
    expect(page.locator(".tiles dd").first).to_have_text("0")


def test_a_feed_that_ends_is_opened_again(live: Live, page: Page) -> None:
    show(page, live)
    push(page, BUSY)
    page.evaluate("window.feeds.at(-1).end()")
    expect(banner(page)).to_have_text("The server has ended the feed. Trying again…")
    holds(page, "window.feeds.length === 2")
    push(page, picture())
    expect(banner(page)).to_have_text("")


@pytest.mark.parametrize(
    ("state", "level", "text"),
    [("restarting", "bad", "The engine restarts."), ("draining", "warn", "It drains"), ("ready", "", "")],
)
def test_it_warns(live: Live, page: Page, state: str, level: str, text: str) -> None:
    show(page, live)
    push(page, picture(state=state, running=7))
    expect(page.locator(".tiles dd").first).to_have_text("7")
    expect(banner(page)).to_contain_text(text) if text else expect(banner(page)).to_have_text("")
    expect(banner(page)).to_have_attribute("data-level", level)


@LOOKS
def test_a_screen_reader_and_a_phone(
    live: Live, page: Page, accessible: Callable[[Page], None], scheme: Any, size: ViewportSize
) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size(size)
    show(page, live)
    accessible(page)
    push(page, BUSY | {"state": "draining"})
    expect(banner(page)).to_contain_text("drains")
    page.get_by_text("As a table").click()
    expect(page.get_by_role("table").get_by_role("row")).to_have_count(5)
    accessible(page)


def test_load_turns_the_wheel_and_stops(slow: Live, page: Page) -> None:
    """A browser opens six connections to a server, for all of its tabs: those of other tabs stay free."""
    page.goto(f"{slow.url}/#wheel")
    running_now = page.locator(".tiles dd").first
    expect(running_now).to_have_text("0")
    page.get_by_role("button", name="Send load").click()
    expect(page.get_by_text(re.compile("^Step [0-9,]+: [5-8] decode rows of"))).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("^[1-9][0-9]* held, .* of 512 pages"))).to_be_visible()
    for other in [page.context.new_page() for _ in range(2)]:
        other.goto(f"{slow.url}/#wheel")  # holds the connection of its feed
        expect(other.locator("#model")).to_have_text("fake")
        expect(other.locator(".tiles dd").first).to_have_text("8")
    page.get_by_role("button", name="Stop load").click()
    expect(page.get_by_role("button", name="Send load")).to_be_visible()
    eventually(idle(slow), "the requests have ended")
    expect(running_now).to_have_text("0")


def test_load_tells_why_the_server_refuses_it(live: Live, page: Page) -> None:
    refusal = {"error": {"message": "the server is full"}}
    page.route("**/v1/completions", lambda route: route.fulfill(status=429, json=refusal))
    page.goto(f"{live.url}/#wheel")
    page.get_by_role("button", name="Send load").click()
    expect(page.get_by_text("The load failed: the server is full", exact=True)).to_be_visible()
    expect(page.get_by_role("button", name="Send load")).to_be_visible()


def test_the_feed_waits_for_a_key(locked: Live, page: Page) -> None:
    page.goto(f"{locked.url}/#wheel")
    unlock(page, "wrong")
    expect(page.get_by_role("alert")).to_have_text("The server does not know this key.")
    page.get_by_role("button", name="Cancel").click()
    expect(banner(page)).to_have_attribute("data-level", "bad")
    page.get_by_role("button", name="Key").click()
    unlock(page)
    expect(page.locator(".wheel .bar")).to_be_visible()
