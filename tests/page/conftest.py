"""A real browser (Debian's Chromium, headless) for the tests of the page, driven by playwright."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, ViewportSize, expect, sync_playwright

from tests.service.live import Live, running
from tests.waiting import PATIENCE

PHONE = ViewportSize(width=360, height=740)
DESKTOP = ViewportSize(width=1280, height=800)
LOOKS = pytest.mark.parametrize(("scheme", "size"), [("light", PHONE), ("dark", DESKTOP)], ids=["phone", "desktop"])
FLAGS = (
    "--no-sandbox",  # containers run it as root
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--use-fake-ui-for-media-stream",
    "--use-fake-device-for-media-stream",  # a microphone that beeps once a second
    "--host-resolver-rules=MAP *.example 127.0.0.1",  # names that their owner has pointed at this machine
)
"""The browser asks for nothing from outside."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--screenshots", type=Path, help="write the screenshots of docs/ into this folder")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "tests/page/" in item.nodeid:
            item.add_marker(pytest.mark.page)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = shutil.which("chromium")
    assert program, "the program chromium is missing; install it (Debian and Ubuntu: apt install chromium)"
    expect.set_options(timeout=PATIENCE * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """A server with the fake model."""
    with running() as live:
        yield live


@pytest.fixture(scope="module")
def reciting() -> Iterator[Live]:
    """A server whose model repeats the last question."""
    with running(model="recite", max_model_len=4096) as live:
        yield live


@pytest.fixture(scope="module")
def slow() -> Iterator[Live]:
    """A server whose model takes 20 ms a token: it writes until somebody stops it."""
    with running(model="slow") as live:
        yield live


@pytest.fixture(scope="module")
def locked() -> Iterator[Live]:
    """A server with the key "secret". Its model repeats the last question."""
    with running(model="recite", max_model_len=4096, api_keys=("secret",)) as live:
        yield live


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty tab of a browser of its own. Fails if the page reports an error or breaks the content policy."""
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"])
    context.set_default_timeout(PATIENCE * 1000)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda line: errors.append(line.text) if breaks_policy(line) else None)
    yield page
    context.close()
    assert not errors, errors


def breaks_policy(line: ConsoleMessage) -> bool:
    """Whether the page breaks the content policy. What axe-core does in the page has no address, and does not count."""
    return "Content Security Policy" in line.text and bool(line.location["url"])


@pytest.fixture
def accessible() -> Callable[[Page], None]:
    """A check by axe-core: fails with the report if the page has a violation, or is wider than its window."""

    def check(page: Page) -> None:
        found = Axe().run(page)
        assert found.violations_count == 0, found.generate_report()
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    return check


@pytest.fixture
def screenshot(request: pytest.FixtureRequest) -> Callable[[Page, str], None]:
    """Writes the page as NAME.png if the run has `--screenshots`: `make test-page ARGS="--screenshots docs/images"`."""
    folder: Path | None = request.config.getoption("--screenshots")

    def take(page: Page, name: str) -> None:
        if folder is not None:
            page.screenshot(path=folder / f"{name}.png")

    return take
